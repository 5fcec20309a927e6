//! API under `/v1`: HTTP and JSON over a Unix socket, for the command line, for scripts with `curl --unix-socket`, and
//! for web pages.

pub mod client;
pub mod server;

use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use swarm_model::Build;

/// Header with the caller's [`Build`] as `VERSION NANOSECONDS`.
pub const BUILD_HEADER: &str = "x-swarm-build";

/// Header with the time of the request, in milliseconds since boot. A supervisor that was suspended must not execute a
/// request that its caller has given up.
pub const SENT_HEADER: &str = "x-swarm-sent";

/// Returns the build of this program, as it was at the first call.
pub fn build() -> &'static Build {
    static BUILD: OnceLock<Build> = OnceLock::new();
    BUILD.get_or_init(|| {
        let modified = std::fs::metadata("/proc/self/exe").map(|meta| (meta.mtime(), meta.mtime_nsec()));
        let built_ns = modified.map_or(0, |(seconds, nanos)| {
            u64::try_from(seconds)
                .unwrap_or(0)
                .saturating_mul(1_000_000_000)
                .saturating_add(u64::try_from(nanos).unwrap_or(0))
        });
        Build { version: env!("CARGO_PKG_VERSION").to_owned(), built_ns }
    })
}

pub fn build_text() -> String {
    let build = build();
    format!("{} {}", build.version, build.built_ns)
}

/// Reports whether the build in the header is newer than `ours`: a higher version, or the same version from a later
/// file.
pub fn is_newer(header: &str, ours: &Build) -> bool {
    let Some((version, built_ns)) = header.split_once(' ') else { return false };
    let Ok(built_ns) = built_ns.parse() else { return false };
    (numbers(version), built_ns) > (numbers(&ours.version), ours.built_ns)
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
