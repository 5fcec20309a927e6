//! `swarm heartbeat list` and `status`: the original program's table and lines, and JSON.

use serde_json::{Map, Value, json};
use swarm_actors::nudges::schedule::{self, Due};
use swarm_model::Every;
use swarm_model::nudges::{Now, Nudge, Status};

use super::args::{ListArgs, ListFormat, StatusArgs, StatusFormat};
use super::said;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::nudges::wire::{self, File};
use swarm_store::nudges::{calendar, list as list_files, present, read_one};
use swarm_sys::paths::Paths;

pub fn list(args: &ListArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let present = present();
    let listed = list_files(paths, &present).map_err(|error| said(format!("cannot read heartbeats: {error}")))?;
    let damaged: Vec<(String, String)> =
        listed.damaged.iter().map(|(path, why)| (path.display().to_string(), why.clone())).collect();
    for (path, why) in &damaged {
        screen.errors(format!("Warning: {}: {}\n", escape(path), escape(why)).as_bytes());
    }
    let objects = || listed.nudges.iter().map(|(file, nudge)| (file, nudge));
    if args.json {
        let all: Vec<Value> = objects().map(|(file, nudge)| ours(file, nudge, present.now).into()).collect();
        let damaged: Vec<Value> = damaged.iter().map(|(path, why)| json!({"file": path, "cause": why})).collect();
        let body = json::object([("heartbeats", all.into()), ("damaged", damaged.into())]);
        json::print(screen, "swarm.heartbeats/1", &body)?;
    } else if args.format == ListFormat::Json {
        let all: Vec<Value> = objects().map(|(file, _)| theirs(file).into()).collect();
        let text = serde_json::to_string_pretty(&all).expect("plain objects with text keys");
        screen.line(&text)?;
    } else if listed.nudges.is_empty() {
        screen.line("No heartbeats found")?;
    } else {
        screen.bytes(table(&listed.nudges, present.now).as_bytes())?;
    }
    Ok(u8::from(!damaged.is_empty()))
}

pub fn status(args: &StatusArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let present = present();
    let found = read_one(paths, &args.worker, &present);
    let found = found.map_err(|error| said(format!("cannot read the heartbeat of '{}': {error}", args.worker)))?;
    let Some((file, nudge)) = found else {
        return Err(Failure::Plain { line: format!("No heartbeat found for {}", args.worker), hint: None });
    };
    if args.json {
        json::print(screen, "swarm.heartbeat/1", &ours(&file, &nudge, present.now))?;
    } else if args.format == StatusFormat::Json {
        let mut object = theirs(&file);
        object.insert("next_beat_at".to_owned(), json!(next_ms(&nudge, present.now).map(wire::time)));
        let text = serde_json::to_string_pretty(&object).expect("a plain object with text keys");
        screen.line(&text)?;
    } else {
        screen.bytes(lines(&file, &nudge, present.now).as_bytes())?;
    }
    Ok(0)
}

/// Formats a duration in at most two units, as the original program does: `4h 0m`, `5m 30s`, `12s`.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

fn due(nudge: &Nudge) -> Option<Due> {
    let zone = jiff::tz::TimeZone::system();
    let dates = |expression: &str, after: u64| calendar::date_after(expression, after, &zone).ok();
    schedule::next(nudge, &dates).filter(|_| nudge.status == Status::Active)
}

/// Returns the time of the next beat in wall-clock milliseconds, or `None` if no beat is due.
fn next_ms(nudge: &Nudge, now: Now) -> Option<u64> {
    due(nudge).map(|due| now.wall_ms.saturating_add(due.left_ms(now)))
}

fn interval(nudge: &Nudge) -> String {
    match &nudge.every {
        Every::Interval { ms } => duration(*ms),
        Every::Cron { expression } => escape(expression).into_owned(),
    }
}

/// Returns the time until the heartbeat expires, or `None` if it never does.
fn left(nudge: &Nudge, now: Now) -> Option<String> {
    let end = nudge.expires?;
    let left = u64::try_from(end.boot_ms.saturating_sub(now.boot())).unwrap_or(0);
    Some(if left == 0 { "expired".to_owned() } else { duration(left) })
}

fn table(nudges: &[(File, Nudge)], now: Now) -> String {
    let row = |cells: [&str; 6]| {
        let [worker, interval, next, expires, status, beats] = cells;
        format!("{worker:<15} {interval:<10} {next:<12} {expires:<12} {status:<10} {beats:<6}\n")
    };
    let mut text = row(["WORKER", "INTERVAL", "NEXT BEAT", "EXPIRES", "STATUS", "BEATS"]);
    for (_, nudge) in nudges {
        let next = due(nudge).map_or_else(|| "-".to_owned(), |due| duration(due.left_ms(now)));
        let expires = left(nudge, now).unwrap_or_else(|| "never".to_owned());
        let (interval, beats) = (interval(nudge), nudge.beats.to_string());
        text.push_str(&row([&escape(&nudge.worker), &interval, &next, &expires, nudge.status.word(), &beats]));
    }
    text
}

fn lines(file: &File, nudge: &Nudge, now: Now) -> String {
    let or = |text: &Option<String>, none: &str| text.as_deref().unwrap_or(none).to_owned();
    let expires = match left(nudge, now) {
        Some(left) if nudge.status.is_open() => format!("{} ({left})", or(&file.expire_at, "")),
        _ => or(&file.expire_at, "never"),
    };
    let next = match (next_ms(nudge, now), due(nudge)) {
        (Some(at), Some(due)) => format!("{} ({})", wire::time(at), duration(due.left_ms(now))),
        _ => "-".to_owned(),
    };
    let mut all = vec![
        ("Worker", nudge.worker.clone()),
        ("Status", nudge.status.word().to_owned()),
        ("Interval", interval(nudge)),
        ("Message", nudge.message.clone()),
        ("Created", file.created_at.clone()),
        ("Expires", expires),
        ("Last beat", or(&file.last_beat_at, "never")),
        ("Next beat", next),
        ("Beat count", nudge.beats.to_string()),
    ];
    if nudge.jitter_ms > 0 {
        all.insert(3, ("Jitter", duration(nudge.jitter_ms)));
    }
    all.iter().map(|(name, value)| format!("{name}: {}\n", escape(value))).collect()
}

/// Returns the JSON object of the original program.
fn theirs(file: &File) -> Map<String, Value> {
    json::object([
        ("worker_name", json!(file.worker_name)),
        ("interval_seconds", json!(file.interval_seconds)),
        ("message", json!(file.message)),
        ("expire_at", json!(file.expire_at)),
        ("created_at", json!(file.created_at)),
        ("last_beat_at", json!(file.last_beat_at)),
        ("beat_count", json!(file.beat_count)),
        ("status", json!(file.status)),
        ("monitor_pid", json!(file.monitor_pid)),
    ])
}

/// Returns the JSON object of schema `swarm.heartbeat/1`.
fn ours(file: &File, nudge: &Nudge, now: Now) -> Map<String, Value> {
    let (interval_ms, cron) = match &nudge.every {
        Every::Interval { ms } => (Some(ms), None),
        Every::Cron { expression } => (None, Some(expression)),
    };
    json::object([
        ("worker", json!(nudge.worker)),
        ("status", json!(nudge.status.word())),
        ("interval_ms", json!(interval_ms)),
        ("cron", json!(cron)),
        ("jitter_ms", json!(nudge.jitter_ms)),
        ("message", json!(nudge.message)),
        ("beats", json!(nudge.beats)),
        ("created_at_ms", json!(nudge.created_ms)),
        ("last_beat_at_ms", json!(nudge.last_beat_ms)),
        ("next_beat_at_ms", json!(next_ms(nudge, now))),
        ("expires_at_ms", json!(nudge.expires.map(|end| end.wall_ms))),
        ("supervisor", json!(file.monitor_pid)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::nudges::Moment;

    fn nudge() -> Nudge {
        Nudge {
            worker: "w".to_owned(),
            every: Every::Interval { ms: 5_400_000 },
            message: "go\x1b[2J".to_owned(),
            jitter_ms: 0,
            status: Status::Active,
            anchor: Moment { boot_ms: 0, wall_ms: 1_767_312_000_000 },
            expires: Some(Moment { boot_ms: 86_400_000, wall_ms: 1_767_398_400_000 }),
            created_ms: 1_767_312_000_000,
            last_beat_ms: None,
            beats: 0,
            handled: 0,
            unfinished: false,
            request: String::new(),
            whole: true,
        }
    }

    fn file(nudge: &Nudge) -> File {
        let present = wire::Present { boot: "b".to_owned(), now: NOW };
        File::of(nudge, &present, 0, None)
    }

    const NOW: Now = Now { boot_ms: 60_000, wall_ms: 1_767_312_060_000 };

    #[test]
    fn durations_have_two_units() {
        for (ms, text) in [(0, "0s"), (59_000, "59s"), (60_000, "1m 0s"), (5_400_000, "1h 30m"), (86_400_000, "24h 0m")]
        {
            assert_eq!(duration(ms), text);
        }
    }

    #[test]
    fn the_table_has_the_columns_of_the_original() {
        let paused = Nudge { worker: "rests".to_owned(), status: Status::Paused, expires: None, ..nudge() };
        let all = [nudge(), paused].map(|nudge| (file(&nudge), nudge));
        let expected = "\
WORKER          INTERVAL   NEXT BEAT    EXPIRES      STATUS     BEATS \n\
w               1h 30m     1h 29m       23h 59m      active     0     \n\
rests           1h 30m     -            never        paused     0     \n";
        assert_eq!(table(&all, NOW), expected);
    }

    #[test]
    fn the_lines_show_every_field_and_cannot_control_the_terminal() {
        let expected = "\
Worker: w\nStatus: active\nInterval: 1h 30m\nMessage: go\\x1b[2J\nCreated: 2026-01-02T00:00:00.000000+00:00\n\
Expires: 2026-01-03T00:00:00.000000+00:00 (23h 59m)\nLast beat: never\n\
Next beat: 2026-01-02T01:30:00.000000+00:00 (1h 29m)\nBeat count: 0\n";
        assert_eq!(lines(&file(&nudge()), &nudge(), NOW), expected);
    }

    #[test]
    fn json_for_the_original_has_its_fields_alone() {
        let object = theirs(&file(&nudge()));
        assert_eq!(object.len(), 9);
        let ours = ours(&file(&nudge()), &nudge(), NOW);
        assert_eq!(
            (&ours["interval_ms"], &ours["next_beat_at_ms"]),
            (&json!(5_400_000), &json!(1_767_317_400_000_u64))
        );
    }
}
