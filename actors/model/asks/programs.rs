//! Options of harmless-looking programs with which these execute another program, or write a file. No rule allows them: it
//! names a program and perhaps a verb, and the agent chooses the options.

/// Why no rule allows such a command.
pub(super) const OPTION: &str = "an option that executes a command or writes a file";

/// Commands and flags of a script of sed that print, count and skip.
const SED_HARMLESS: &str = ",$+~;!{} pPdDqQ=nNlgGhHxzIiMm";
/// Options of sed without a value that may stand in one word.
const SED_FLAGS: &str = "nErsuz";

/// Reports whether the words after a program contain an option that executes something or writes a file.
pub(super) fn has_risky_option(program: &str, words: &[String]) -> bool {
    let long = |names: &[&str]| words.iter().any(|word| names.iter().any(|name| is_short_for(word, name)));
    let short = |letters: &[char]| words.iter().any(|word| cluster(word).is_some_and(|of| of.contains(letters)));
    let is_about = |verbs: &[&str]| words.iter().any(|word| verbs.contains(&word.as_str()));
    match program {
        "git" => {
            let of_verb =
                is_about(&["rebase"]) && short(&['x']) || is_about(&["archive", "format-patch"]) && short(&['o']);
            let executes = ["--open-files-in-pager", "--ext-diff", "--textconv", "--exec", "--config"];
            let of_others = ["--output", "--output-directory", "--upload-pack", "--receive-pack"];
            of_verb || short(&['O']) || long(&executes) || long(&of_others)
        }
        "fd" | "fdfind" => short(&['x', 'X']) || long(&["--exec", "--exec-batch"]),
        "rg" => long(&["--pre", "--hostname-bin"]),
        "sort" => short(&['o']) || long(&["--output", "--compress-program"]),
        "tar" | "gtar" => {
            let writes = ["--index-file", "--volno-file"];
            let executes = ["--to-command", "--checkpoint-action", "--use-compress-program", "--rsh-command"];
            let more = ["--info-script", "--new-volume-script", "--rmt-command"];
            // The first word may do without the dash.
            let is_old = words.first().is_some_and(|word| !word.starts_with('-') && word.contains(['I', 'F']));
            is_old || short(&['I', 'F']) || long(&writes) || long(&executes) || long(&more)
        }
        "tree" => short(&['o']),
        "sed" | "gsed" => !is_harmless_sed(words),
        _ => false,
    }
}

/// Returns the letters of a word of short options.
fn cluster(word: &str) -> Option<&str> {
    word.strip_prefix('-').filter(|letters| !letters.starts_with('-'))
}

/// Reports whether a word is a long option, which may be shortened and have a value.
fn is_short_for(word: &str, option: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    // `--text` is an option of its own.
    name.len() > "--".len() && name != "--text" && option.starts_with(name)
}

/// Reports whether each script in the words of sed only prints, and there is none in a file.
fn is_harmless_sed(words: &[String]) -> bool {
    let (mut words, mut has_script) = (words.iter(), false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quiet" | "--silent" | "--regexp-extended" | "--separate" | "--unbuffered" | "--null-data" => {}
            inplace if inplace.starts_with("-i") || inplace.starts_with("--in-place") => {}
            flags if cluster(flags).is_some_and(|of| !of.is_empty() && of.chars().all(|c| SED_FLAGS.contains(c))) => {}
            flags if cluster(flags).is_some_and(|of| of.trim_start_matches(|c| SED_FLAGS.contains(c)) == "e") => {
                has_script = true;
                if !words.next().is_none_or(|script| is_harmless_script(script)) {
                    return false;
                }
            }
            option if option.starts_with('-') && option != "-" => return false,
            script if !has_script => {
                has_script = true;
                if !is_harmless_script(script) {
                    return false;
                }
            }
            _ => {}
        }
    }
    true
}

/// Reports whether a script of sed contains only patterns between slashes, substitutions, and commands that print.
fn is_harmless_script(script: &str) -> bool {
    let mut rest = script;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let patterns = match c {
            '/' => 1,
            's' if after.starts_with('/') => 2,
            _ if c.is_ascii_digit() || SED_HARMLESS.contains(c) => 0,
            _ => return false,
        };
        rest = if c == 's' { &after[1..] } else { after };
        for _ in 0..patterns {
            let Some(after) = behind_pattern(rest) else { return false };
            rest = after;
        }
    }
    true
}

/// Returns what follows a pattern and the slash behind it. `None` if that is not certain: some versions of sed take a slash
/// within brackets for a part of the pattern.
fn behind_pattern(text: &str) -> Option<&str> {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == '/' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    let is_open = text[..end].rfind('[') > text[..end].rfind(']');
    (!is_open).then(|| &text[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_risky(line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        has_risky_option(&words[0], &words[1..])
    }

    #[test]
    fn options_that_execute_or_write_are_found_and_others_are_not() {
        for risky in [
            "git diff --no-index --output=/x /dev/null README",
            "git log --output /x",
            "git log --outp=/x",
            "git grep -Otouch_x adapter",
            "git grep -nOtouch_x adapter",
            "git grep --open-files-in-pager=touch adapter",
            "git grep --open=touch adapter",
            "git log -p --ext-diff",
            "git grep --textc x",
            "git ls-remote --upload-pack=x .",
            "git ls-remote --exec=x .",
            "git push --receive-pack=x",
            "git clone --config a=b x",
            "git rebase -x make main",
            "git rebase -ix make main",
            "git rebase --exec make",
            "git archive -o x HEAD",
            "git format-patch -ox HEAD",
            "fd -x rm",
            "fd --exec-b rm",
            "rg --pre cat x",
            "rg --pre=cat x",
            "rg --hostname-bin=x",
            "sort -o F x",
            "sort -uoF x",
            "sort --out=F x",
            "sort --compress-program=x",
            "sort --comp x",
            "tar tf a --to-command=x",
            "tar tf a --checkpoint-action=exec=x",
            "tar tIf x a",
            "tar -tf a -I x",
            "tar tf a --use-compress x",
            "tar tvf a --index-file=x",
            "tree -o F",
            "tree -ao F",
            "sed -n 1e_id",
            "sed -n 1w_x f",
            "sed s/a/b/e f",
            "sed s/a/b/w_x f",
            "sed s/a/b/;1w_x f",
            "sed s|a|b| f",
            "sed -e p -e e f",
            "sed -ne e f",
            "sed --expression=e f",
            "sed -f script f",
            "sed -- 1e f",
            "sed f -e 1e",
            "sed /a\\/e/w_x f",
            "sed s/[/]e/x/ f",
        ] {
            assert!(is_risky(risky), "{risky}");
        }
        for harmless in [
            "git diff --cached --text --stat -w",
            "git log --oneline -n5 --output-indicator-new=x",
            "git grep -n --or x",
            "git ls-files -o",
            "git grep -o x",
            "git cherry-pick -x HEAD",
            "git rebase --onto a b",
            "git commit -m O",
            "rg --pretty -n x",
            "rg --pre-glob=x y",
            "sort -u -k2 x",
            "sort --check x",
            "tar tf Image.tar",
            "tree -L 2",
            "fd -e rs",
            "sed",
            "sed -n",
            "sed -n 1,20p e",
            "sed -n /fn_main/,/^}/p w",
            "sed -E s/[a-z]+\\/e/x/g f",
            "sed -n -e 5p -e $p e",
            "sed -i s/e/w/ f",
            "cat --output",
        ] {
            assert!(!is_risky(harmless), "{harmless}");
        }
    }
}
