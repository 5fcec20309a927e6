use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn addresses_are_parsed_or_refused_without_showing_them() {
    let parsed = |url: &str| Address::parse(url).map(|at| (at.to_string(), at.name, at.port, at.path));
    for (url, shown, name, port, path) in [
        ("http://127.0.0.1:8080/h?x=1", "http://127.0.0.1:8080", "127.0.0.1", 8080, "/h?x=1"),
        ("HTTP://localhost", "http://localhost:80", "localhost", 80, "/"),
        ("http://[::1]:99/a#b", "http://[::1]:99", "::1", 99, "/a"),
        ("http://[::1]", "http://[::1]:80", "::1", 80, "/"),
        ("https://x.example/a", "https://x.example:443", "x.example", 443, "/a"),
        ("HTTPS://[::1]?x", "https://[::1]:443", "::1", 443, "/?x"),
        ("http://x/{a}?<ü>", "http://x:80", "x", 80, "/%7Ba%7D?%3C%C3%BC%3E"),
        ("http://x?token=ü", "http://x:80", "x", 80, "/?token=%C3%BC"),
        (" http://x/y@z\n", "http://x:80", "x", 80, "/y@z"),
    ] {
        assert_eq!(parsed(url), Ok((shown.to_owned(), name.to_owned(), port, path.to_owned())), "{url}");
    }
    for (url, why) in [
        ("ftp://secret", "does not begin with http:// or https://"),
        ("secret", "does not begin with http:// or https://"),
        ("https://x:/secret", "no valid port"),
        ("http://", "has no host"),
        ("http://:80/secret", "has no host"),
        ("http://x:secret/", "no valid port"),
        ("http://user:secret/x@y/", "no valid port"),
        ("http://[::1]secret/", "no valid port"),
        ("http://a secret/", "a space"),
        ("http://u:secret@x/", "a user name"),
        ("http://sécret/", "invalid host"),
    ] {
        let cause = parsed(url).expect_err(url);
        assert!(cause.contains(why) && !cause.contains("cret"), "{cause}");
    }
}

/// Starts a server that serves one connection with `serve`, and returns its address.
fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || listener.accept().map(|(stream, _)| serve(stream)));
    address
}

fn read_request(stream: &mut impl Read) -> String {
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.ends_with('}') {
        let count = stream.read(&mut piece).expect("read");
        assert!(count > 0, "it ended with {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    text
}

fn answering(answer: &'static str) -> SocketAddr {
    server(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(answer.as_bytes());
    })
}

fn posted(to: SocketAddr, limit: Duration) -> Result<(), Failed> {
    post(&format!("http://{to}/secret?secret"), "{}", limit)
}

/// A resolver that maps every name to these addresses.
#[derive(Debug)]
struct Fixed(Vec<SocketAddr>);

impl Resolver for Fixed {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        self.0.iter().for_each(|address| addresses.push(*address));
        if addresses.is_empty() { Err(Error::HostNotFound) } else { Ok(addresses) }
    }
}

/// Posts to a name that resolves to these addresses.
fn sent(found: Vec<SocketAddr>, limit: Duration) -> Result<(), Failed> {
    let address = Address::parse("http://name/").expect("an address");
    send(&address, "{}", limit, RootCerts::WebPki, Fixed(found))
}

/// Returns a port without a listener. The port is that of a client connection and stays reserved while that connection
/// is open.
fn deserted() -> (TcpListener, TcpStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let holder = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let address = holder.local_addr().expect("an address");
    (listener, holder, address)
}

/// Returns a listener that accepts no more connections, the connections that fill it, and its address.
fn full() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).expect("a number")).expect("listens");
    let address = listener.local_addr().expect("an address");
    let mut visitors = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        visitors.push(stream);
    }
    (listener, visitors, address)
}

#[test]
fn the_answer_decides_whether_the_request_is_retried() {
    for (answer, told) in [
        ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
        ("HTTP/1.0 204\n\n", Ok(())),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", Ok(())),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Ok(())),
        (
            "HTTP/1.1 302 Found\r\nLocation: /secret\r\n\r\n",
            Err(("HTTP status 302: redirects are not followed", false)),
        ),
        (
            "HTTP/1.1 307 No\r\nLocation: http://secret/\r\n\r\n",
            Err(("HTTP status 307: redirects are not followed", false)),
        ),
        ("HTTP/1.1 404 secret\r\n\r\n", Err(("HTTP status 404", false))),
        ("HTTP/1.1 429 Slowly\r\n\r\n", Err(("HTTP status 429", true))),
        ("HTTP/1.1 500 secret\r\n\r\n", Err(("HTTP status 500", true))),
        ("HTTP/1.1 x\r\n\r\n", Err(("did not answer in HTTP", true))),
        ("SSH-2.0 200\r\n", Err(("did not answer in HTTP", true))),
        ("", Err(("did not answer in HTTP", true))),
    ] {
        let to = answering(answer);
        match (posted(to, SOON), told) {
            (Ok(()), Ok(())) => {}
            (Err(failed), Err((why, may_pass))) => {
                assert!(failed.cause.starts_with(&format!("http://{to}: ")), "{failed:?}");
                assert!(failed.cause.contains(why) && !failed.cause.contains("secret"), "{failed:?}");
                assert_eq!(failed.may_pass, may_pass, "{failed:?}");
            }
            (done, _) => panic!("{answer}: {done:?}"),
        }
    }
}

#[test]
fn a_request_has_the_headers_of_a_webhook_and_the_event() {
    let (sender, request) = mpsc::channel();
    let to = server(move |mut stream| {
        let _ = sender.send(read_request(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    });
    assert_eq!(post(&format!("http://{to}/a/b?c=d#e"), "{\"x\":\"ü\"}", SOON), Ok(()));
    let request = request.recv_timeout(SOON).expect("a request");
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    assert_eq!((lines.next(), body), (Some("POST /a/b?c=d HTTP/1.1"), "{\"x\":\"ü\"}"));
    let mut headers: Vec<String> = lines.map(|line| line.to_ascii_lowercase()).collect();
    headers.sort();
    let agent = concat!("user-agent: swarm/", env!("CARGO_PKG_VERSION"));
    let host = format!("host: {to}");
    let expected = ["connection: close", "content-length: 10", "content-type: application/json", &host, agent];
    assert_eq!(headers, expected);
}

#[test]
fn an_answer_counts_once_its_head_is_complete() {
    let (sender, ended) = mpsc::channel();
    let to = server(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        let _ = sender.send(());
    });
    assert_eq!(posted(to, SOON), Ok(()));
    ended.recv_timeout(SOON).expect("the client closes before the body ends");
    // A head that does not end is no answer.
    for start in ["", "HTTP/1.1 200 OK\r\nA: "] {
        let to = server(move |mut stream| {
            read_request(&mut stream);
            let _ = stream.write_all(start.as_bytes());
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        });
        assert!(posted(to, SOON).expect_err("no HTTP").cause.contains("did not answer in HTTP"));
    }
}

#[test]
fn a_silent_or_slow_server_cannot_exceed_the_time_limit() {
    let limit = Duration::from_millis(300);
    // Reads the whole request and answers nothing until the client closes the connection.
    let silent = server(|mut stream| while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {});
    // Sends single bytes without end, and never a complete response head.
    let dripping = server(|mut stream| {
        let (mut piece, pause) = ([0; 1], Some(Duration::from_millis(50)));
        stream.set_read_timeout(pause).expect("set");
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nA: ");
        while stream.write_all(b"x").is_ok() {
            let _ = stream.read(&mut piece);
        }
    });
    for to in [silent, dripping] {
        let failed = posted(to, limit).expect_err("no answer");
        assert_eq!((failed.cause, failed.may_pass), (format!("http://{to}: no answer within 300ms"), true));
    }
    // A server that reads nothing of a long request.
    let (over, is_over) = mpsc::channel::<()>();
    let to = server(move |stream| {
        let _ = is_over.recv_timeout(SOON);
        drop(stream);
    });
    let failed = post(&format!("http://{to}"), &"x".repeat(64 << 20), limit).expect_err("not taken");
    assert_eq!(failed.cause, format!("http://{to}: no answer within 300ms"));
    drop(over);
    // A server that reads a long request slowly, in small pieces.
    let (end, pace) = mpsc::channel::<()>();
    let to = server(move |mut stream| {
        while stream.read(&mut [0; 32 << 10]).is_ok_and(|count| count > 0) {
            let _ = pace.recv_timeout(Duration::from_millis(50));
        }
    });
    let began = Instant::now();
    let failed = post(&format!("http://{to}"), &"x".repeat(64 << 20), limit).expect_err("not taken in time");
    assert_eq!(failed.cause, format!("http://{to}: no answer within 300ms"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(end);
}

#[test]
fn the_addresses_of_a_name_are_tried_in_turn() {
    let (_server, _holder, deserted) = deserted();
    assert_eq!(sent(vec![deserted, answering("HTTP/1.1 200 OK\r\n\r\n")], SOON), Ok(()));
    // An address that does not answer does not use up the time of the next one.
    let (_listener, _visitors, hanging) = full();
    assert_eq!(sent(vec![hanging, answering("HTTP/1.1 200 OK\r\n\r\n")], Duration::from_secs(6)), Ok(()));
    assert!(sent(vec![hanging], Duration::from_millis(200)).expect_err("no answer").cause.contains("no answer within"));
    assert!(sent(vec![deserted], SOON).expect_err("nobody there").cause.contains("refused"));
    assert_eq!(sent(Vec::new(), SOON).expect_err("none").cause, "host has no address");
}

#[test]
fn a_slow_name_lookup_times_out() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    let port = silent.local_addr().expect("an address").port();
    let config = resolv_conf::Config::parse("nameserver 127.0.0.1").expect("a configuration");
    let sources = Sources { hosts: String::new(), config, port };
    let host = Host { name: "name.example".to_owned(), port: 80, sources };
    let address = Address::parse("http://name.example/").expect("an address");
    let failed = send(&address, "{}", Duration::from_millis(20), RootCerts::WebPki, host).expect_err("not found");
    assert_eq!(failed, Failed::for_now("host name not resolved within 20ms"));
}

/// Starts a server with its own certificate for these names; returns the certificate and the address.
fn secured(names: &[&str], visitors: usize) -> (RootCerts, SocketAddr) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).expect("made");
    let der = made.cert.der().clone();
    let roots = RootCerts::from([Certificate::from_der(&der).to_owned()]);
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(vec![der], key).expect("a configuration"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for _ in 0..visitors {
            let Ok((stream, _)) = listener.accept() else { return };
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            if stream.conn.complete_io(&mut stream.sock).is_ok() {
                read_request(&mut stream);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            }
        }
    });
    (roots, address)
}

#[test]
fn https_needs_a_trusted_certificate_for_the_host() {
    let (roots, to) = secured(&["name.example"], 3);
    let send_to = |url: &str, roots: RootCerts| {
        let address = Address::parse(url).expect("an address");
        send(&address, "{}", SOON, roots, Fixed(vec![to]))
    };
    assert_eq!(send_to("https://name.example/secret", roots.clone()), Ok(()));
    for (url, roots, why) in [
        ("https://name.example/secret", RootCerts::WebPki, "UnknownIssuer"),
        ("https://other.example/secret", roots, "not valid for name \"other.example\""),
    ] {
        let failed = send_to(url, roots).expect_err("refused");
        assert!(failed.cause.contains("invalid peer certificate") && failed.cause.contains(why), "{failed:?}");
        assert!(!failed.may_pass && !failed.cause.contains("secret"), "{failed:?}");
    }
}

#[test]
fn a_server_without_tls_or_answer_is_given_up() {
    let plain = answering_at_once("HTTP/1.1 200 OK\r\n\r\n");
    let failed = post(&format!("https://{plain}/secret"), "{}", SOON).expect_err("no TLS");
    assert!(failed.cause.starts_with(&format!("https://{plain}: ")) && failed.may_pass, "{failed:?}");
    assert!(!failed.cause.contains("secret"), "{failed:?}");
    let silent = server(|mut stream| while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {});
    let failed = post(&format!("https://{silent}"), "{}", Duration::from_millis(300)).expect_err("no answer");
    assert_eq!((failed.cause, failed.may_pass), (format!("https://{silent}: no answer within 300ms"), true));
}

/// Starts a server that sends its answer without reading the request first.
fn answering_at_once(answer: &'static str) -> SocketAddr {
    server(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer.as_bytes());
    })
}
