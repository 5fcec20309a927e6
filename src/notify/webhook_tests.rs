use std::net::TcpListener;
use std::thread;

use super::*;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn addresses_are_taken_apart_or_refused_with_a_sentence_that_shows_nothing() {
    let parsed = |url: &str| Address::parse(url).map(|at| (at.to_string(), at.name, at.port, at.path));
    for (url, shown, name, port, path) in [
        ("http://127.0.0.1:8080/h?x=1", "http://127.0.0.1:8080", "127.0.0.1", 8080, "/h?x=1"),
        ("HTTP://localhost", "http://localhost:80", "localhost", 80, "/"),
        ("http://[::1]:99/a#b", "http://[::1]:99", "::1", 99, "/a"),
        ("http://[::1]", "http://[::1]:80", "::1", 80, "/"),
        ("http://x?token=ü", "http://x:80", "x", 80, "/?token=%C3%BC"),
        (" http://x/y@z\n", "http://x:80", "x", 80, "/y@z"),
    ] {
        assert_eq!(parsed(url), Ok((shown.to_owned(), name.to_owned(), port, path.to_owned())), "{url}");
    }
    for (url, why) in [
        ("https://secret/", "is https"),
        ("ftp://secret", "does not begin with http://"),
        ("secret", "does not begin with http://"),
        ("http://", "names no host"),
        ("http://:80/secret", "names no host"),
        ("http://x:secret/", "no port"),
        ("http://user:secret/x@y/", "no port"),
        ("http://[::1]secret/", "no port"),
        ("http://a secret/", "a blank"),
        ("http://u:secret@x/", "a user in it"),
        ("http://sécret/", "other characters"),
    ] {
        let cause = parsed(url).expect_err(url);
        assert!(cause.contains(why) && !cause.contains("cret"), "{cause}");
    }
}

/// A server that does this with its one visitor, and where it is.
fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || listener.accept().map(|(stream, _)| serve(stream)));
    address
}

fn read_request(stream: &mut TcpStream) -> String {
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

/// Posts to a name that leads there.
fn sent(found: Vec<SocketAddr>, limit: Duration) -> Result<(), Failed> {
    let address = Address::parse("http://name/").expect("an address");
    send(&address, "{}", Limit::new(limit), &LOOKUPS, move |_: &str, _| Ok(found))
}

/// A port at which nobody listens, for as long as the connection that holds it is open: the port is that of
/// its client.
fn deserted() -> (TcpListener, TcpStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let holder = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let address = holder.local_addr().expect("an address");
    (listener, holder, address)
}

/// A listener that takes no more connections, those that fill it, and where it is.
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
fn what_a_server_answers_decides_whether_it_is_sent_again() {
    for (answer, told) in [
        ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
        ("HTTP/1.0 204\n", Ok(())),
        ("HTTP/1.1 302 Found\r\nLocation: /secret\r\n\r\n", Err(("302, and redirects are not followed", false))),
        ("HTTP/1.1 404 secret\r\n\r\n", Err(("it answered 404", false))),
        ("HTTP/1.1 429 Slowly\r\n\r\n", Err(("it answered 429", true))),
        ("HTTP/1.1 500 secret\r\n\r\n", Err(("it answered 500", true))),
        ("HTTP/1.1 x\r\n", Err(("did not answer in HTTP", true))),
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
fn an_answer_counts_with_its_first_line_however_long_the_rest_is() {
    let (sender, ended) = mpsc::channel();
    let to = server(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        let _ = sender.send(());
    });
    assert_eq!(posted(to, SOON), Ok(()));
    ended.recv_timeout(SOON).expect("the rest is not waited for");
    // A first line without an end is none.
    let to = server(|mut stream| {
        read_request(&mut stream);
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert!(posted(to, SOON).expect_err("no HTTP").cause.contains("did not answer in HTTP"));
}

#[test]
fn a_server_that_is_silent_or_drips_has_its_time_and_no_more() {
    let limit = Duration::from_millis(300);
    // It takes what it is sent, and says nothing until its visitor has gone.
    let silent = server(|mut stream| while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {});
    // It says something again and again, and never a whole line.
    let dripping = server(|mut stream| {
        let (mut piece, pause) = ([0; 1], Some(Duration::from_millis(50)));
        stream.set_read_timeout(pause).expect("set");
        while stream.write_all(b"H").is_ok() {
            let _ = stream.read(&mut piece);
        }
    });
    for to in [silent, dripping] {
        let failed = posted(to, limit).expect_err("no answer");
        assert_eq!((failed.cause, failed.may_pass), (format!("http://{to}: no answer within 300ms"), true));
    }
    // It takes nothing of something long.
    let (over, is_over) = mpsc::channel::<()>();
    let to = server(move |stream| {
        let _ = is_over.recv_timeout(SOON);
        drop(stream);
    });
    let failed = post(&format!("http://{to}"), &"x".repeat(64 << 20), limit).expect_err("not taken");
    assert_eq!(failed.cause, format!("http://{to}: no answer within 300ms"));
    drop(over);
}

#[test]
fn a_name_s_addresses_are_tried_in_turn() {
    let (_server, _holder, deserted) = deserted();
    assert_eq!(sent(vec![deserted, answering("HTTP/1.1 200 OK\r\n\r\n")], SOON), Ok(()));
    // One that says nothing does not use up the time of the next.
    let (_listener, _visitors, hanging) = full();
    assert_eq!(sent(vec![hanging, answering("HTTP/1.1 200 OK\r\n\r\n")], Duration::from_secs(6)), Ok(()));
    assert!(sent(vec![hanging], Duration::from_millis(200)).expect_err("no answer").cause.contains("no answer within"));
    assert!(sent(vec![deserted], SOON).expect_err("nobody there").cause.contains("refused"));
    assert_eq!(sent(Vec::new(), SOON).expect_err("none").cause, "its host has no address");
}

#[test]
fn a_name_that_is_not_found_in_time_is_left_and_there_are_never_many() {
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
    let address = Address::parse("http://name/").expect("an address");
    let mut held = Vec::new();
    let mut hang = || {
        let (hold, wait) = mpsc::channel::<()>();
        held.push(hold);
        move |_: &str, _: u16| -> io::Result<Vec<SocketAddr>> {
            let _ = wait.recv();
            Ok(Vec::new())
        }
    };
    let limit = Duration::from_millis(20);
    let mut try_one = || send(&address, "{}", Limit::new(limit), &UNDER_WAY, hang()).expect_err("not found");
    assert_eq!(try_one(), Failed::for_now("its host's name was not found within 20ms"));
    let last = (0..LOOKUPS_MAX).map(|_| try_one()).last();
    assert_eq!(last.expect("tried").cause, "8 names are being looked up and none is found");
    assert_eq!(UNDER_WAY.load(Ordering::Relaxed), LOOKUPS_MAX);
}
