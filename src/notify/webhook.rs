//! Webhooks: one POST over HTTP or HTTPS, within a time limit that includes name lookup and all addresses of the host.
//! Neither redirects nor the proxies of the environment are followed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error, Timeout};

use super::lookup::Sources;
use super::way::Failed;

/// Maximum size of the head of a server's answer, in bytes. The body is not read.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Size of one write, in bytes. A blocking write may take the whole limit once more if the server takes it in drips, so
/// one write must not be many segments.
const WRITE_BYTES: usize = 4096;
/// Number of addresses of a host that are tried.
const ADDRESSES_MAX: usize = 16;
/// Maximum time of a lookup. Deliveries take less.
const LOOKUP_MAX: Duration = Duration::from_secs(60);

/// Posts an event to a server.
///
/// # Errors
/// Says how the delivery failed, and shows host and port only.
pub fn post(url: &str, body: &str, limit: Duration) -> Result<(), Failed> {
    let address = Address::parse(url).map_err(Failed::for_good)?;
    let host = Host { name: address.name.clone(), port: address.port, sources: Sources::system() };
    let roots = match address.scheme {
        Scheme::Http => Ok(RootCerts::WebPki),
        Scheme::Https => roots(),
    };
    roots
        .and_then(|roots| send(&address, body, limit, roots, host))
        .map_err(|failed| Failed { cause: format!("{address}: {}", failed.cause), ..failed })
}

/// Returns the trusted certificates: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, else those of the system, else
/// Mozilla's, which the program contains.
fn roots() -> Result<RootCerts, Failed> {
    let found = rustls_native_certs::load_native_certs();
    if !found.certs.is_empty() {
        let certs: Vec<_> = found.certs.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect();
        return Ok(RootCerts::from(certs));
    }
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find(|name| is_set(name)) {
        Some(name) => Err(Failed::for_good(format!("{name} has no certificates"))),
        None => Ok(RootCerts::WebPki),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A URL in its parts.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    scheme: Scheme,
    /// Host and port as written.
    host: String,
    /// Host without brackets.
    name: String,
    port: u16,
    path: String,
}

impl fmt::Display for Address {
    /// Shows scheme, host and port: a path may contain a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{}://{open}{}{close}:{}", self.scheme.name(), self.name, self.port)
    }
}

impl Address {
    /// Fails without showing anything of the URL: a token may be in the wrong place.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("the URL {why}"));
        let (scheme, rest) = url.trim().split_once("://").unwrap_or_default();
        let known = [Scheme::Http, Scheme::Https].into_iter().find(|known| scheme.eq_ignore_ascii_case(known.name()));
        let Some(scheme) = known else {
            return wrong("does not begin with http:// or https://");
        };
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return wrong("contains a space or control character");
        }
        // A fragment is not sent.
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if host.contains('@') {
            return wrong("contains a user name, which is not supported");
        }
        let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((name, port)) => (name, port),
            None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
        };
        if name.is_empty() {
            return wrong("has no host");
        }
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c)) {
            return wrong("has an invalid host: only letters, digits, '.' and '-' are allowed");
        }
        let port = match port.strip_prefix(':').map(str::parse) {
            Some(Ok(port)) => port,
            None if port.is_empty() => scheme.port(),
            _ => return wrong("has no valid port after the colon"),
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = format!("{slash}{}", in_ascii(path));
        Ok(Self { scheme, host: host.to_owned(), name: name.to_owned(), port, path })
    }
}

/// Escapes what a request line cannot contain.
fn in_ascii(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let byte = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(byte).collect()
}

/// The host of the request: the only one that is ever looked up.
#[derive(Debug)]
struct Host {
    name: String,
    port: u16,
    sources: Sources,
}

impl Resolver for Host {
    fn resolve(&self, _: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let deadline = Instant::now() + (*timeout.after).min(LOOKUP_MAX);
        let found = self.sources.find(&self.name, deadline).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Timeout(Timeout::Resolve),
            _ => Error::Other(Box::new(error)),
        })?;
        let mut addresses = self.empty();
        found.into_iter().take(ADDRESSES_MAX).for_each(|ip| addresses.push(SocketAddr::new(ip, self.port)));
        if addresses.is_empty() { Err(Error::HostNotFound) } else { Ok(addresses) }
    }
}

fn send(
    address: &Address,
    body: &str,
    limit: Duration,
    roots: RootCerts,
    resolver: impl Resolver,
) -> Result<(), Failed> {
    let config = Config::builder()
        .timeout_global(Some(limit))
        // What the environment of the supervisor happens to contain must not decide where events go.
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_response_header_size(HEAD_BYTES_MAX)
        .output_buffer_size(WRITE_BYTES)
        .user_agent(concat!("swarm/", env!("CARGO_PKG_VERSION")))
        .accept("")
        .accept_encoding("")
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
    let Address { scheme, host, path, .. } = address;
    let request = agent
        .post(format!("{}://{host}{path}", scheme.name()))
        .header("Content-Type", "application/json")
        .header("Connection", "close");
    let answer = request.send(body).map_err(|error| failed(error, limit))?;
    judge(answer.status().as_u16())
}

/// Says why there is no answer. The text of an error is used only if it cannot contain the URL.
fn failed(error: Error, limit: Duration) -> Failed {
    let not_http = || Failed::for_now("the server did not answer in HTTP");
    match error {
        Error::Timeout(Timeout::Resolve) => Failed::for_now(format!("host name not resolved within {limit:?}")),
        Error::Timeout(_) => Failed::for_now(format!("no answer within {limit:?}")),
        Error::HostNotFound => Failed::for_now("host has no address"),
        Error::Protocol(_) | Error::LargeResponseHeader(..) => not_http(),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => not_http(),
        Error::Io(error) => match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
            Some(cause) => in_tls(cause),
            None => Failed::for_now(error.to_string()),
        },
        Error::Rustls(error) => in_tls(&error),
        // From the lookup.
        Error::Other(error) => Failed::for_now(error.to_string()),
        Error::Http(_) | Error::BadUri(_) => Failed::for_good("the URL is not valid"),
        _ => Failed::for_now("the request failed"),
    }
}

/// A certificate that is not trusted now will not be trusted a second later.
fn in_tls(error: &rustls::Error) -> Failed {
    Failed { may_pass: !matches!(error, rustls::Error::InvalidCertificate(_)), ..Failed::for_good(error.to_string()) }
}

/// Judges a status code. What the server will refuse again is not sent again.
fn judge(status: u16) -> Result<(), Failed> {
    match status {
        200..=299 => Ok(()),
        300..=399 => Err(Failed::for_good(format!("HTTP status {status}: redirects are not followed"))),
        408 | 425 | 429 => Err(Failed::for_now(format!("HTTP status {status}"))),
        400..=499 => Err(Failed::for_good(format!("HTTP status {status}"))),
        _ => Err(Failed::for_now(format!("HTTP status {status}"))),
    }
}

#[cfg(test)]
#[path = "webhook_tests.rs"]
mod tests;
