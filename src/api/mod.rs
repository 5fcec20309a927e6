//! API under `/v1`: HTTP and JSON over a Unix socket, for the command line, for scripts with `curl --unix-socket`, and
//! for web pages.

mod below;
pub mod client;
mod connections;
pub mod enclosing;
mod events;
pub mod orphans;
pub mod peer;
pub mod server;
mod start;
pub mod supervision;

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use swarm_model::Build;

pub use enclosing::Enclosing;

/// Header with the caller's [`Build`] as `VERSION NANOSECONDS`.
pub const BUILD_HEADER: &str = "x-swarm-build";

/// Header with the time of the request, in milliseconds since boot. A supervisor that was suspended must not execute a
/// request that its caller has given up.
pub const SENT_HEADER: &str = "x-swarm-sent";

/// Route on which a program asks to replace the supervisor and its guard.
const REPLACE_ROUTE: &str = "/v1/replace";

/// Body of a request to [`REPLACE_ROUTE`].
#[derive(serde::Serialize, serde::Deserialize)]
struct Replace {
    /// The caller's own program.
    program: std::path::PathBuf,
    /// Replace also a supervisor that is not older.
    #[serde(default)]
    again: bool,
}

/// Returns the build of this program, as it was at the first call.
pub fn build() -> &'static Build {
    static BUILD: OnceLock<Build> = OnceLock::new();
    BUILD.get_or_init(|| {
        let built_ns = std::fs::metadata("/proc/self/exe").map_or(0, |meta| modified_ns(&meta));
        Build { version: env!("CARGO_PKG_VERSION").to_owned(), built_ns }
    })
}

/// Returns the path at which this program was when it was started, also if another file is there now.
pub fn installed() -> Option<std::path::PathBuf> {
    static INSTALLED: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();
    let find = || {
        let link = std::fs::read_link("/proc/self/exe").ok()?.into_os_string().into_vec();
        let path = link.strip_suffix(b" (deleted)").unwrap_or(&link);
        Some(std::path::PathBuf::from(OsStr::from_bytes(path)))
    };
    INSTALLED.get_or_init(find).clone()
}

/// Returns when a file was last written, in nanoseconds since the Unix epoch.
pub fn modified_ns(meta: &std::fs::Metadata) -> u64 {
    let whole = u64::try_from(meta.mtime()).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(meta.mtime_nsec()).unwrap_or(0))
}

pub fn build_text() -> String {
    let build = build();
    format!("{} {}", build.version, build.built_ns)
}

/// Reports whether the build in the header is newer than `ours`: a higher version, or the same version from a later
/// file.
pub fn is_newer(header: &str, ours: &Build) -> bool {
    build_of(header)
        .is_some_and(|(version, built_ns)| (numbers(version), built_ns) > (numbers(&ours.version), ours.built_ns))
}

/// Parses the build in the header. `None` if it is malformed.
fn build_of(header: &str) -> Option<(&str, u64)> {
    let (version, built_ns) = header.split_once(' ')?;
    Some((version, built_ns.parse().ok()?))
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_file_or_a_higher_version_is_newer() {
        let ours = Build { version: "0.9.1".to_owned(), built_ns: 50 };
        for (header, newer) in [
            ("0.9.1 50", false),
            ("0.9.1 51", true),
            ("0.10.0 1", true),
            ("0.9.0 99", false),
            ("torn", false),
            ("0.9.1 x", false),
        ] {
            assert_eq!(is_newer(header, &ours), newer, "{header}");
        }
    }
}
