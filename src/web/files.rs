//! The page: files that are a part of the program. They have no secret in them.

use std::sync::OnceLock;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, Response, StatusCode};
use sha2::{Digest as _, Sha256};

pub struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub const FILES: [File; 8] = [
    File { path: "/", kind: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    File { path: "/style.css", kind: "text/css; charset=utf-8", text: include_str!("page/style.css") },
    File { path: "/icon.svg", kind: "image/svg+xml", text: include_str!("page/icon.svg") },
    File { path: "/app.js", kind: SCRIPT, text: include_str!("page/app.js") },
    File { path: "/board.js", kind: SCRIPT, text: include_str!("page/board.js") },
    File { path: "/detail.js", kind: SCRIPT, text: include_str!("page/detail.js") },
    File { path: "/link.js", kind: SCRIPT, text: include_str!("page/link.js") },
    File { path: "/text.js", kind: SCRIPT, text: include_str!("page/text.js") },
];

/// Returns the files as they are sent, in the same order.
fn sent() -> &'static [String] {
    static SENT: OnceLock<Vec<String>> = OnceLock::new();
    SENT.get_or_init(|| FILES.iter().map(|file| lean(file.text)).collect())
}

/// Returns a text without indentation and without lines that are comments only.
fn lean(text: &str) -> String {
    let is_comment = |line: &str| line.starts_with("//") || (line.starts_with("/*") && line.ends_with("*/"));
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !is_comment(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns a file of the page, or that the browser has it. `None` if there is no such file.
pub fn answer(path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let (file, sent) = FILES.iter().zip(sent()).find(|(file, _)| file.path == path)?;
    let tag = tag();
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let (status, text) = if is_known { (StatusCode::NOT_MODIFIED, "") } else { (StatusCode::OK, sent.as_str()) };
    let response = Response::builder().status(status);
    let response = response.header(CONTENT_TYPE, file.kind).header(ETAG, tag).header(CACHE_CONTROL, "no-cache");
    response.body(Body::from(text)).ok()
}

/// Returns the name of this version of all files.
fn tag() -> &'static str {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| {
        let mut digest = Sha256::new();
        sent().iter().for_each(|text| digest.update(text));
        let digest = digest.finalize();
        let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{hex}\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of all files in bytes.
    const ALL_BYTES_MAX: usize = 60_000;

    #[test]
    fn the_page_is_small() {
        let size: usize = sent().iter().map(String::len).sum();
        assert!(size <= ALL_BYTES_MAX, "{size}");
        assert!(FILES.iter().all(|file| !file.text.is_empty()));
    }

    #[test]
    fn what_is_sent_means_the_same() {
        assert_eq!(lean("\t/** Note. */\n\n\ta = 1; // one\n// two\n\t\tb\n"), "a = 1; // one\nb\n");
        // No text goes over lines, and no comment over more than one.
        for file in &FILES {
            for line in file.text.lines() {
                assert!(line.matches('`').count() % 2 == 0, "{}: {line}", file.path);
                assert_eq!(line.contains("/*"), line.contains("*/"), "{}: {line}", file.path);
                assert!(line.matches("/*").count() <= 1, "{}: {line}", file.path);
            }
        }
    }

    #[test]
    fn the_page_keeps_its_own_policy() {
        for file in &FILES {
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "style=\"",
                "onclick=",
                "http://",
                "https://",
            ] {
                let text = file.text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(banned), "{} has {banned}", file.path);
            }
        }
        let page = FILES[0].text;
        assert!(
            !page.contains("<style")
                && page.matches("<script").count() == page.matches("<script type=\"module\" src=").count()
        );
    }

    #[test]
    fn a_browser_that_has_a_file_is_told_so() {
        let first = answer("/app.js", &HeaderMap::new()).expect("a file");
        let tag = first.headers().get(ETAG).expect("a tag").clone();
        let headers = HeaderMap::from_iter([(IF_NONE_MATCH, tag)]);
        assert_eq!(answer("/app.js", &headers).expect("a file").status(), StatusCode::NOT_MODIFIED);
        assert!(answer("/app.js/", &headers).is_none() && answer("/../style.css", &headers).is_none());
    }
}
