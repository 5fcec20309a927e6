use super::*;

const SOON: std::time::Duration = std::time::Duration::from_secs(20);

struct Log {
    _dir: tempfile::TempDir,
    path: PathBuf,
    older: PathBuf,
}

fn log(text: &str) -> Log {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, older) = (dir.path().join("x.log"), dir.path().join("x.log.1"));
    fs::write(&path, text).expect("written");
    Log { _dir: dir, path, older }
}

fn taken(run: impl FnOnce(&mut Sink) -> Result<(), Failure>) -> String {
    let mut bytes = Vec::new();
    run(&mut |block| {
        bytes.extend_from_slice(block);
        Ok(())
    })
    .expect("readable");
    String::from_utf8(bytes).expect("text")
}

fn read(log: &Log, from: From) -> String {
    let mut tail = Tail::new(log.path.clone());
    taken(|sink| tail.start(from, sink).and_then(|()| tail.drain(sink).map(drop)))
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    fs::OpenOptions::new().append(true).open(path).expect("open").write_all(text.as_bytes()).expect("written");
}

#[test]
fn the_last_lines_are_found_with_and_without_a_final_newline() {
    let one = log("a\nb\nc\n");
    assert_eq!(read(&one, From::LastLines(2)), "b\nc\n");
    assert_eq!(read(&one, From::LastLines(9)), "a\nb\nc\n");
    assert_eq!(read(&one, From::LastLines(0)), "");
    assert_eq!(read(&log("a\nb\nc"), From::LastLines(2)), "b\nc");
    assert_eq!(read(&log("\n\n\n"), From::LastLines(2)), "\n\n");
    assert_eq!(read(&log(""), From::LastLines(2)), "");
}

#[test]
fn the_rotated_part_comes_first() {
    let one = log("c\nd\n");
    fs::write(&one.older, "a\nb\n").expect("written");
    assert_eq!(read(&one, From::Start), "a\nb\nc\nd\n");
    assert_eq!(read(&one, From::LastLines(3)), "b\nc\nd\n");
    assert_eq!(read(&one, From::LastLines(2)), "c\nd\n");
    fs::remove_file(&one.path).expect("removed");
    assert_eq!(read(&one, From::Start), "a\nb\n");
}

#[test]
fn the_end_of_a_big_log_is_read_without_its_beginning() {
    let one = log("");
    let file = File::options().write(true).open(&one.path).expect("open");
    // A sparse file of a gigabyte: reading all of it would take noticeably long.
    file.set_len(1 << 30).expect("grown");
    append(&one.path, &format!("\n{}\nlast\n", "x".repeat(3 * BLOCK_BYTES)));
    assert_eq!(read(&one, From::LastLines(1)), "last\n");
    assert_eq!(read(&one, From::LastLines(2)).len(), 3 * BLOCK_BYTES + 1 + 5);
}

#[test]
fn growth_truncation_and_renaming_lose_nothing() {
    let one = log("a\n");
    let mut tail = Tail::new(one.path.clone());
    assert_eq!(taken(|sink| tail.start(From::Start, sink)), "");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "a\n");
    append(&one.path, "b\n");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "b\n");
    // Copied by another program, with a read before it truncates the log.
    fs::copy(&one.path, &one.older).expect("copied");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "");
    fs::write(&one.path, "").expect("truncated");
    append(&one.path, "x\n");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "x\n");
    append(&one.path, "yy\n");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "yy\n");
    fs::remove_file(&one.older).expect("removed");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "");
    // Written, copied, truncated and written again between two reads.
    append(&one.path, "c\n");
    fs::copy(&one.path, &one.older).expect("copied");
    fs::write(&one.path, "d\n").expect("written");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "c\nd\n");
    append(&one.path, "e\n");
    fs::rename(&one.path, &one.older).expect("renamed");
    assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "e\n");
    fs::write(&one.path, "f\n").expect("written");
    let mut switched = false;
    assert_eq!(taken(|sink| tail.drain(sink).map(|drained| switched = drained.switched)), "f\n");
    assert!(switched);
}

#[test]
fn a_rotation_between_two_reads_neither_loses_nor_repeats_a_line() {
    let one = log("");
    let mut tail = Tail::new(one.path.clone());
    let lines = |range: std::ops::Range<u32>| range.map(|number| format!("{number:05}\n")).collect::<String>();
    append(&one.path, &lines(0..1000));
    assert_eq!(taken(|sink| tail.start(From::Start, sink).and_then(|()| tail.drain(sink).map(drop))), lines(0..1000));
    for round in (1000..4000).step_by(1000) {
        append(&one.path, &lines(round..round + 100));
        log_parts::rotate(&one.path, 3000, SOON).expect("rotated");
        // Longer than before the rotation, so that the size alone does not show it.
        append(&one.path, &lines(round + 100..round + 1000 + 500));
        let expected = lines(round..round + 1500);
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), expected);
        log_parts::rotate(&one.path, 600, SOON).expect("rotated");
        append(&one.path, &lines(round + 1500..round + 1600));
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), lines(round + 1500..round + 1600));
    }
}

#[test]
fn a_reader_beside_a_rotation_repeats_no_line() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let one = log("");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..200_000).step_by(100) {
                append(&one.path, &(number..number + 100).map(|number| format!("{number:06}\n")).collect::<String>());
                // Whole lines of seven bytes: a reader that misses a part continues at a line's start.
                if fs::metadata(&one.path).expect("there").len() > 20_000 {
                    log_parts::rotate(&one.path, 7 * 1_400, SOON).expect("rotated");
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let text = read(&one, From::Start);
            // A reader may see the first page of a write before the second, so the last line may be cut.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let numbers: Vec<u32> = whole.lines().map(|line| line.parse().expect("a whole line")).collect();
            assert!(numbers.is_sorted_by(|one, next| one < next), "a line came twice");
        }
    });
}

#[test]
fn one_drain_has_a_limit() {
    let one = log("");
    File::options().write(true).open(&one.path).expect("open").set_len(DRAIN_BYTES_MAX + 1).expect("grown");
    let mut tail = Tail::new(one.path.clone());
    let mut drains = Vec::new();
    for _ in 0..2 {
        let mut count = 0;
        let drained = tail.drain(&mut |block| {
            count += block.len() as u64;
            Ok(())
        });
        drains.push((count, drained.expect("readable").more));
    }
    assert_eq!(drains, [(DRAIN_BYTES_MAX, true), (1, false)]);
}

/// Goes on in another reader, as after a cut, and returns it with what it passes on.
fn goes_on(log: &Log, tail: &Tail) -> (Tail, String) {
    let place: Place =
        serde_json::from_str(&serde_json::to_string(&tail.place().expect("a place")).expect("json")).expect("a place");
    let mut next = Tail::new(log.path.clone());
    let text = taken(|sink| next.go_on(&place, sink).and_then(|()| next.drain(sink).map(drop)));
    (next, text)
}

#[test]
fn another_reader_goes_on_at_a_place_whatever_became_of_the_log() {
    let one = log("a\n");
    let mut tail = Tail::new(one.path.clone());
    assert_eq!(taken(|sink| tail.start(From::Start, sink).and_then(|()| tail.drain(sink).map(drop))), "a\n");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "");
    append(&one.path, "b\n");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "b\n", "grown");
    append(&one.path, "c\n");
    log_parts::rotate(&one.path, 1000, SOON).expect("rotated");
    append(&one.path, "d\n");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "c\nd\n", "copied and truncated");
    append(&one.path, "eeeeeeeeee\n");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "eeeeeeeeee\n", "grown beside a part that was read");
    append(&one.path, "f\n");
    fs::rename(&one.path, &one.older).expect("renamed");
    fs::write(&one.path, "g\n").expect("written");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "f\ng\n", "renamed");
    fs::remove_file(&one.path).expect("removed");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "", "gone");
    fs::write(&one.path, "h\n").expect("written");
    let (tail, text) = goes_on(&one, &tail);
    assert_eq!(text, "h\n", "made again");
    fs::remove_file(&one.path).expect("removed");
    fs::remove_file(&one.older).expect("removed");
    fs::write(&one.older, "i\n").expect("written");
    fs::write(&one.path, "j\n").expect("written");
    assert_eq!(goes_on(&one, &tail).1, "i\nj\n", "both are new");
}

#[test]
fn a_reader_that_is_cut_between_rotations_neither_loses_nor_repeats_a_line() {
    let one = log("");
    let mut tail = Tail::new(one.path.clone());
    tail.begin().expect("readable");
    let (mut all, mut read) = (String::new(), String::new());
    for round in 0..60_u32 {
        let text: String = (round * 100..round * 100 + 1 + round % 90).map(|number| format!("{number:05}\n")).collect();
        append(&one.path, &text);
        all += &text;
        if round % 3 == 1 {
            log_parts::rotate(&one.path, 3000, SOON).expect("rotated");
        }
        if round % 2 == 0 {
            let (next, text) = goes_on(&one, &tail);
            (tail, read) = (next, read + &text);
        }
    }
    assert_eq!(read + &goes_on(&one, &tail).1, all);
}
