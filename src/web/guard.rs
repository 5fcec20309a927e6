//! Checks of a request before anything of it is carried out. Other programs and other users of this machine can connect, and
//! so can any page in the browser of this person: it can send requests here, under a name of its own that it has resolve to
//! this machine.

use std::hint::black_box;
use std::io;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};

/// Prefix of the paths that need the token.
const API: &str = "/v1/";
/// The path below it that needs none, because the token is exchanged there for the code of an address.
pub const ENTER: &str = "/v1/enter";
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A secret: 256 random bits in lower-case hex.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// Fails if the kernel has no random bits.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0_u8; 32];
        let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if count != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where two tokens differ.
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differ = own.iter().zip(given).fold(0, |differ, (one, other)| differ | black_box(one ^ other));
        own.len() == given.len() && differ == 0
    }
}

/// Why a request is refused. The text says what to do, and nothing about the fleet.
pub type Refused = (StatusCode, &'static str);

/// Checks the head of a request.
///
/// # Errors
/// Returns the answer to a request that is not carried out.
pub fn check(head: &Parts, token: &Token) -> Result<(), Refused> {
    let host = host(&head.uri, &head.headers)?;
    if !matches!(head.method, Method::GET | Method::HEAD | Method::POST) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are answered"));
    }
    if !head.uri.path().starts_with(API) {
        return Ok(());
    }
    if !is_from_here(&head.headers, host) {
        return Err((StatusCode::FORBIDDEN, "requests of other pages are refused"));
    }
    let given = one(&head.headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if head.uri.path() != ENTER && !given.is_some_and(|given| token.is(given.as_bytes())) {
        return Err((
            StatusCode::UNAUTHORIZED,
            "the token is missing or of an earlier start; open an address that 'swarm web' printed since",
        ));
    }
    if head.method == Method::POST && one(&head.headers, &CONTENT_TYPE) != Some("application/json") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
    }
    Ok(())
}

/// Returns the host that was asked for, with its port. It must be this machine under a name that only this machine has: a
/// page whose own name resolves to this machine sends that name. A forwarded port may be any.
fn host<'a>(uri: &Uri, headers: &'a HeaderMap) -> Result<&'a str, Refused> {
    let refused =
        (StatusCode::FORBIDDEN, "the address must begin with http://127.0.0.1, http://localhost or http://[::1]");
    // A request for a proxy names its host a second time.
    if uri.authority().is_some() {
        return Err(refused);
    }
    let host = one(headers, &HOST).ok_or(refused)?;
    let (name, port) = match host.rfind(':') {
        Some(at) if !host.ends_with(']') => (&host[..at], Some(&host[at + 1..])),
        _ => (host, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_here = ["127.0.0.1", "[::1]"].contains(&name) || name.eq_ignore_ascii_case("localhost");
    if is_here && port.is_none_or(is_port) { Ok(host) } else { Err(refused) }
}

/// Reports whether a browser sends this request for a page of this server. Other programs say nothing about that, and
/// need the token all the same.
fn is_from_here(headers: &HeaderMap, host: &str) -> bool {
    let is_site = match one(headers, &SITE) {
        Some(site) => site == "same-origin",
        None => !headers.contains_key(SITE),
    };
    let is_origin = match one(headers, &ORIGIN) {
        Some(origin) => origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host)),
        None => !headers.contains_key(ORIGIN),
    };
    is_site && is_origin
}

/// Returns the value of a header that is there once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn token() -> Token {
        Token("ab".repeat(32))
    }

    /// Returns the status of a request with these headers, 200 if it is carried out.
    fn status(method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        check(&head, &token()).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]", "[::1]:65535"] {
            assert_eq!(status("GET", "/", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "127.0.0.2",
            "0.0.0.0:80",
            "::1",
            "[::1",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:+1",
            "a@localhost",
            "localhost:80:80",
            "",
            "localhost, evil.example",
            " ",
        ] {
            assert_eq!(status("GET", "/", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(status("GET", "/", &[]), 403, "no host");
        assert_eq!(status("GET", "/", &[("host", "localhost"), ("host", "localhost")]), 403, "two hosts");
        assert_eq!(status("GET", "http://localhost/", &[("host", "localhost")]), 403, "as a proxy");
    }

    #[test]
    fn everything_but_the_page_needs_the_token() {
        let bearer = format!("Bearer {}", token().text());
        let with = |value: &str| status("GET", "/v1/board", &[("host", "localhost"), ("authorization", value)]);
        assert_eq!(with(&bearer), 200);
        for wrong in ["", "Bearer ", "Bearer abab", &bearer[..bearer.len() - 1], &bearer.replace("Bearer", "Basic")] {
            assert_eq!(with(wrong), 401, "{wrong}");
        }
        assert_eq!(with(&format!("{bearer}a")), 401);
        assert_eq!(with(&bearer.replacen("ab", "ac", 1)), 401);
        let host = ("host", "localhost");
        assert_eq!(status("GET", "/v1/board", &[host]), 401);
        let query = format!("/v1/board?token={}", token().text());
        assert_eq!(status("GET", &query, &[host]), 401, "a token in the query");
        assert_eq!(status("GET", "/v1/board", &[host, ("cookie", &bearer)]), 401);
        let twice = [host, ("authorization", &*bearer), ("authorization", &*bearer)];
        assert_eq!(status("GET", "/v1/board", &twice), 401);
        assert_eq!(status("GET", "/app.js", &[host]), 200);
    }

    #[test]
    fn requests_of_other_pages_are_refused_also_with_the_token() {
        let bearer = format!("Bearer {}", token().text());
        let asked = |name: &str, value: &str| {
            let all = [("host", "localhost:8080"), ("authorization", &*bearer), (name, value)];
            status("GET", "/v1/board", &all)
        };
        assert_eq!(asked("sec-fetch-site", "same-origin"), 200);
        for site in ["cross-site", "same-site", "none", ""] {
            assert_eq!(asked("sec-fetch-site", site), 403, "{site}");
        }
        assert_eq!(asked("origin", "http://localhost:8080"), 200);
        for origin in [
            "null",
            "http://localhost",
            "http://localhost:8081",
            "https://localhost:8080",
            "http://evil.example",
            "http://localhost:8080.evil.example",
            "",
        ] {
            assert_eq!(asked("origin", origin), 403, "{origin}");
        }
    }

    #[test]
    fn acts_are_json_and_no_other_method_is_answered() {
        let bearer = format!("Bearer {}", token().text());
        let host = ("host", "localhost");
        let post =
            |more: &[(&str, &str)]| status("POST", "/v1/act", &[&[host, ("authorization", &*bearer)], more].concat());
        assert_eq!(post(&[("content-type", "application/json")]), 200);
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json, text/plain"]
        {
            assert_eq!(post(&[("content-type", kind)]), 415, "{kind}");
        }
        assert_eq!(post(&[]), 415);
        for method in ["OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "PATCH"] {
            assert_eq!(status(method, "/v1/board", &[host, ("authorization", &*bearer)]), 405, "{method}");
        }
    }

    #[test]
    fn a_code_is_exchanged_without_the_token_but_not_for_other_pages() {
        let post = |more: &[(&str, &str)]| {
            let own = [("host", "localhost"), ("content-type", "application/json")];
            status("POST", ENTER, &[&own, more].concat())
        };
        assert_eq!(post(&[]), 200);
        assert_eq!(post(&[("origin", "http://evil.example")]), 403);
        assert_eq!(post(&[("sec-fetch-site", "same-site")]), 403);
        assert_eq!(post(&[("content-type", "text/plain")]), 415, "two types");
        assert_eq!(status("POST", ENTER, &[("host", "localhost")]), 415);
        for other in ["/v1/enter/", "/v1/enterx", "/v1/./enter", "/v1/Enter"] {
            assert_eq!(
                status("POST", other, &[("host", "localhost"), ("content-type", "application/json")]),
                401,
                "{other}"
            );
        }
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (Token::random().expect("bits"), Token::random().expect("bits"));
        assert!(one != other && one.text().len() == 64, "{} {}", one.text(), other.text());
    }
}
