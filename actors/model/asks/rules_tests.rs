use super::*;

fn rules(list: &[(Effect, &str)]) -> Vec<AskRule> {
    list.iter().map(|(effect, pattern)| AskRule::new(*effect, pattern, None).expect(pattern)).collect()
}

fn command(rules: &[AskRule], command: &str) -> Rule {
    rule_of(rules, &AskWish::Command { command: command.to_owned() })
}

#[test]
fn every_command_of_a_line_must_be_allowed() {
    let mut rules = rules(&[
        (Effect::Allow, "cargo test"),
        (Effect::Allow, "git diff*"),
        (Effect::Allow, "cat src/*"),
        (Effect::Allow, "tail"),
        (Effect::Allow, "bash"),
        (Effect::Allow, "find"),
        (Effect::Allow, "git"),
        (Effect::Allow, "env"),
    ]);
    // No verb makes these, but a file may have been edited.
    for pattern in ["xargs", "eval"] {
        rules.push(AskRule { effect: Effect::Allow, pattern: pattern.to_owned(), reason: None });
    }
    for allowed in [
        "cargo test",
        "cargo  test",
        "\tcargo test -p x ",
        "'cargo' \"test\"",
        "cargo test && cargo test; tail",
        "cargo test | tail -5",
        "cargo test || tail",
        "cargo test 2>&1 | tail",
        "cargo test >/dev/null 2>&1",
        "cargo test 'a; rm b'",
        "cargo test \"a && b\"",
        "cargo test a\\;b",
        "git diff-files",
        "git diff --cached",
        "cat src/a.rs",
        "cargo test '$(rm x)'",
        "cargo test é",
        "cargo test '*.rs' \"[a]\" 'x$y' \\$x a$ {}",
        "bash script.sh",
        "find . -name x",
        "env cargo test",
    ] {
        assert_eq!(command(&rules, allowed), Rule::Allow, "{allowed:?}");
    }
    for not in [
        "",
        " ",
        ";",
        "cargo testx",
        "cargo",
        "Cargo test",
        "./cargo test",
        "cargo build",
        "cargo test; rm -rf ~",
        "cargo test && rm x",
        "cargo test | sh",
        "cargo test || rm",
        "rm; cargo test",
        "cargo test $(rm x)",
        "cargo test `rm x`",
        "cargo test \"$(rm x)\"",
        "cargo test \"`rm x`\"",
        "cargo test <(rm x)",
        "cargo test > x",
        "cargo test >> x",
        "cargo test < x",
        "cargo test 2>x",
        "cargo test >/dev/nullx",
        "cargo test & rm x",
        "cargo test &",
        "cargo test |& rm",
        "cargo test &> x",
        "CARGO=x cargo test",
        "A+=x cargo test",
        "env A=b cargo testx; sh",
        "sh -c 'cargo test'",
        "bash -c 'rm x'",
        "bash -lc 'rm x'",
        "xargs rm",
        "/usr/bin/xargs rm",
        "tail | xargs rm",
        "find . -exec rm {} +",
        "find . -execdir rm",
        "find . -ok rm",
        "find . -delete",
        "git -c core.pager=x diff",
        "git --config-env=a=b diff",
        "git -ccore.pager=x diff",
        "git diff --no-index --output=/x /dev/null README",
        "git 'grep' \"-Otouch x\" adapter",
        "cargo test && git log --output=x",
        "env git grep --open=x y",
        "cargo test\nrm x",
        "cargo test\r\nrm x",
        "cargo test \0",
        "cargo test \u{1b}[2K",
        "cargo test \u{202e}x",
        "cargo test \u{200b}",
        "cargo test ''\u{7}",
        "cargo test '\n'",
        "cargo\u{a0}test",
        "(cargo test)",
        "{ cargo test; }",
        "cargo test;",
        "cargo test ;; cargo test",
        "&& cargo test",
        "cargo test 'open",
        "cargo test \"open",
        "cargo test \\",
        "cargo test ${x@P}",
        "cargo test $'\\n'",
        "cargo test $((1))",
        "cargo test $[1]",
        "cat src/../../x",
        "cat src/$X",
        "cat src/*",
        "cat src/{.,}./x",
        "cat src/.?/x",
        "cargo test $x",
        "cargo test \"$x\"",
        "cargo test [a]",
        "find . -maxdepth 0 -exe$@c touch x {} +",
        "find . -maxdepth 0 -exe{c..c} touch x",
        "find . *",
        "git \"-$@c\" alias.x=!touch x",
        "git pus$@h",
        "git {push,origin}",
        "! cargo test",
        "time cargo test",
        "eval cargo test",
        "env sh -c 'rm x'",
        "env -i A=b bash -c x",
        "env xargs rm",
        "env A=b make",
        "sudo cargo test",
        "cargo\\ test",
        "'cargo test'",
    ] {
        assert_ne!(command(&rules, not), Rule::Allow, "{not:?}");
    }
    for c in ["x", "{", "$", "\"", "(", "\\", "git ", "-"] {
        // Takes no time that grows with the square of the length.
        assert_ne!(command(&rules, &format!("rm {}", c.repeat(60_000 / c.len()))), Rule::Allow);
    }
    let long = format!("cargo test {}", "x ".repeat(30_000));
    assert_eq!(command(&rules, &long), Rule::Allow);
    assert_ne!(command(&rules, &format!("{long}; rm x")), Rule::Allow);
    assert_eq!(command(&rules, &format!("cargo test {}", "x ".repeat(35_000))), Rule::Ask);
}

#[test]
fn a_rule_that_denies_matches_any_command_of_a_line_however_it_is_wrapped() {
    let rules =
        rules(&[(Effect::Deny, "git push"), (Effect::Ask, "curl"), (Effect::Allow, "git"), (Effect::Allow, "curl")]);
    for denied in [
        "git push",
        "git push origin",
        "git  push",
        "make && git push",
        "make; git push",
        "true | git push",
        "git push &",
        "(git push)",
        "{ git push; }",
        "$(git push)",
        "echo \"$(git push)\"",
        "echo `git push`",
        "sudo git push",
        "sudo -u root git push",
        "env A=b git push",
        "A=b git push",
        "timeout 5 git push",
        "nice -n 5 git push",
        "nohup git push",
        "/usr/bin/git push",
        "git -C /x push",
        "git -c a=b push",
        "git --no-pager push",
        "sh -c 'git push'",
        "bash -lc \"git push\"",
        "bash -c 'g\"i\"t push'",
        "bash -c \"git \\\"push\\\"\"",
        "git \\\n  push",
        "git pu\\\nsh",
        "git \"pu\\\nsh\"",
        "env -S 'git push'",
        "env -S'git push'",
        "env --split-string='git push'",
        "xargs git push",
        "find . -exec git push ;",
        "if git push; then x; fi",
        "'git' push",
        "g''it push",
        "\\git push",
        "git push > log",
        ">log git push",
        ">>log git push",
        "&>log git push",
        "2> log git push",
        "{fd}>log git push",
        "<<<text git push",
        "<(make) git push",
        ">(git push)",
        "A=b >log git push",
        "git >log push",
        "env >log git push",
        "echo a; >log git push",
        "$'git' push",
        "$\"git\" push",
        "make\ngit push",
        "git\tpush",
        "! git push",
        "curl x; git push",
        "sudo /usr/bin/git -C x push",
        "eval 'git push'",
        "git --attr-source HEAD push",
        "git --config-env a=b push",
        "git -q --no-pager -C x push",
        "echo \"$(git 'push')\"",
        "flock x git push",
        "systemd-run --user git push",
        "coproc git push",
    ] {
        assert_eq!(command(&rules, denied), Rule::Deny { reason: "a rule denies 'git push'".to_owned() }, "{denied:?}");
    }
    for other in [
        "git pushx",
        "git status",
        "git commit -m 'git push later'",
        "git commit -m push",
        "git -C x log push",
        "echo git push",
        "git log push",
    ] {
        assert!(!matches!(command(&rules, other), Rule::Deny { .. }), "{other:?}");
    }
    assert_eq!(command(&rules, "curl x | git apply"), Rule::Ask, "one that asks wins over one that allows");
    assert_eq!(command(&rules, "git apply"), Rule::Allow);
    let cargo = self::rules(&[(Effect::Ask, "cargo publish"), (Effect::Allow, "cargo")]);
    for asked in
        ["cargo publish", "cargo -q publish", "cargo +nightly publish", "cargo --config a=b -q publish --dry-run"]
    {
        assert_eq!(command(&cargo, asked), Rule::Ask, "{asked}");
    }
    assert_eq!(command(&cargo, "cargo test publish"), Rule::Allow);
}

#[test]
fn tools_are_matched_by_server_and_name() {
    let rules = rules(&[
        (Effect::Allow, "mcp__docs__*"),
        (Effect::Allow, "mcp__git__log"),
        (Effect::Deny, "mcp__docs__write*"),
        (Effect::Allow, "docs"),
    ]);
    let of = |server: &str, name: &str| {
        let (server, name) = (server.to_owned(), name.to_owned());
        rule_of(&rules, &AskWish::Mcp { server, name, arguments: serde_json::Value::Null })
    };
    assert_eq!((of("docs", "read"), of("git", "log")), (Rule::Allow, Rule::Allow));
    assert!(matches!(of("docs", "write_page"), Rule::Deny { .. }));
    for (server, name) in [("docs__x", "read"), ("git", "logs"), ("doc", "s__read"), ("other", "read"), ("git", "")] {
        assert_eq!(of(server, name), Rule::None, "{server} {name}");
    }
    assert_eq!(command(&rules, "mcp__docs__read"), Rule::None);
    for wish in [
        AskWish::Write { path: "docs".to_owned(), change: String::new() },
        AskWish::Tool { input: serde_json::Value::Null },
        AskWish::Question { questions: Vec::new() },
    ] {
        assert_eq!(rule_of(&rules, &wish), Rule::None);
    }
}

#[test]
fn patterns_that_can_match_nothing_or_too_much_are_refused() {
    for pattern in [
        "",
        " ",
        "a | b",
        "a && b",
        "a; b",
        "a*b",
        "a *b",
        "mcp__",
        "mcp__docs",
        "mcp__docs__",
        "mcp__do*__x",
        "mcp__d__*x",
    ] {
        for effect in [Effect::Allow, Effect::Deny, Effect::Ask] {
            assert!(AskRule::new(effect, pattern, None).is_err(), "{pattern:?}");
        }
    }
    for pattern in [
        "*",
        "xargs rm",
        "cat ?",
        "cat {a,b}",
        "make $x",
        "sh -c x",
        "A=b make",
        "a > b",
        "find . -exec",
        "git -c x",
        "make $(x)",
        "a\u{202e}",
    ] {
        assert!(AskRule::new(Effect::Allow, pattern, None).is_err(), "{pattern:?}");
    }
    for pattern in ["*", "sh -c", "xargs", "git -c", "make"] {
        AskRule::new(Effect::Deny, pattern, None).expect(pattern);
    }
}

#[test]
fn a_suggested_rule_allows_the_same_command_again() {
    for line in
        ["cargo test -p x", "make && make install", "echo 'a b' | tail", "echo \"it's\"", "make; make", "cat ''"]
    {
        let wish = AskWish::Command { command: line.to_owned() };
        let patterns = suggested(&wish).expect(line);
        let rules: Vec<AskRule> = patterns.iter().map(|it| AskRule::new(Effect::Allow, it, None).expect(it)).collect();
        assert_eq!(rule_of(&rules, &wish), Rule::Allow, "{line}: {patterns:?}");
    }
    assert_eq!(suggested(&AskWish::Command { command: "make; make".to_owned() }), Ok(vec!["make".to_owned()]));
    let mcp = AskWish::Mcp { server: "a".to_owned(), name: "b".to_owned(), arguments: serde_json::Value::Null };
    assert_eq!(suggested(&mcp), Ok(vec!["mcp__a__b".to_owned()]));
    for line in ["make $(x)", "ls *.rs", "", "make > x", "A=b make"] {
        suggested(&AskWish::Command { command: line.to_owned() }).expect_err(line);
    }
}
