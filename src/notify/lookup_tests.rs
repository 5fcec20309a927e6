use std::net::TcpListener;
use std::thread;

use simple_dns::ResourceRecord;
use simple_dns::rdata::{A, AAAA, CNAME};

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

fn sources(hosts: &str, config: &str, port: u16) -> Sources {
    Sources { hosts: hosts.to_owned(), config: Config::parse(config).expect("a configuration"), port }
}

fn find(sources: &Sources, name: &str) -> io::Result<Vec<IpAddr>> {
    sources.find(name, Instant::now() + SOON)
}

/// What a name server knows: `None` is no such name.
type Known = fn(&str, QTYPE) -> Option<Vec<RData<'static>>>;

fn answer(query: &[u8], known: Known) -> Vec<u8> {
    let query = Packet::parse(query).expect("a query");
    let mut reply = Packet::new_reply(query.id());
    let question = query.questions[0].clone();
    match known(&question.qname.to_string(), question.qtype) {
        Some(found) => {
            let record = |data| ResourceRecord::new(question.qname.clone(), CLASS::IN, 60, data);
            reply.answers = found.into_iter().map(record).collect();
        }
        None => *reply.rcode_mut() = RCODE::NameError,
    }
    reply.questions.push(question);
    reply.build_bytes_vec().expect("a reply")
}

/// A name server on loopback. Each UDP answer is made by `send` of the full answer.
fn server(known: Known, send: fn(Vec<u8>) -> Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("bound");
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            for datagram in send(answer(&buffer[..count], known)) {
                let _ = socket.send_to(&datagram, from);
            }
        }
    });
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut length = [0; 2];
            stream.read_exact(&mut length).expect("read");
            let mut query = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut query).expect("read");
            let reply = answer(&query, known);
            let length = u16::try_from(reply.len()).expect("short").to_be_bytes();
            stream.write_all(&[&length[..], &reply].concat()).expect("written");
        }
    });
    port
}

fn whole(reply: Vec<u8>) -> Vec<Vec<u8>> {
    vec![reply]
}

fn zone(name: &str, kind: QTYPE) -> Option<Vec<RData<'static>>> {
    let four = |ip: [u8; 4]| RData::A(A { address: u32::from_be_bytes(ip) });
    match (name.to_ascii_lowercase().as_str(), kind) {
        ("both.example", QTYPE::TYPE(TYPE::A)) => {
            let alias = Name::new("other.example").expect("a name");
            Some(vec![RData::CNAME(CNAME(alias)), four([192, 0, 2, 1]), four([192, 0, 2, 2])])
        }
        ("both.example", QTYPE::TYPE(TYPE::AAAA)) => Some(vec![RData::AAAA(AAAA { address: 1 })]),
        ("six.example", QTYPE::TYPE(TYPE::AAAA)) => Some(vec![RData::AAAA(AAAA { address: 2 })]),
        ("six.example" | "none.example", _) => Some(Vec::new()),
        ("short.corp.example", QTYPE::TYPE(TYPE::A)) => Some(vec![four([192, 0, 2, 3])]),
        ("short.corp.example", _) => Some(Vec::new()),
        ("many.example", QTYPE::TYPE(TYPE::A)) => Some((0..100).map(|n| four([192, 0, 2, n])).collect()),
        _ => None,
    }
}

#[test]
fn addresses_localhost_and_the_hosts_file_need_no_name_server() {
    let hosts =
        "# all.example 192.0.2.9\n::5 two.example Alias\n192.0.2.5\ttwo.example. # three.example\nbroken two.example\n";
    let sources = sources(hosts, "nameserver 192.0.2.1", 1);
    for (name, found) in [
        ("192.0.2.7", &["192.0.2.7"][..]),
        ("::7", &["::7"]),
        ("localhost", &["127.0.0.1", "::1"]),
        ("App.LocalHost.", &["127.0.0.1", "::1"]),
        ("TWO.example", &["192.0.2.5", "::5"]),
        ("alias.", &["::5"]),
    ] {
        assert_eq!(find(&sources, name).expect(name), ips(found), "{name}");
    }
}

#[test]
fn name_servers_are_asked_for_both_families_and_with_the_search_domains() {
    let sources = sources("", "nameserver 127.0.0.1\nsearch nowhere.example corp.example", server(zone, whole));
    for (name, found) in [
        ("BOTH.example", &["192.0.2.1", "192.0.2.2", "::1"][..]),
        ("six.example", &["::2"]),
        ("none.example", &[]),
        ("unknown.example", &[]),
        ("short", &["192.0.2.3"]),
        ("short.", &[]),
    ] {
        assert_eq!(find(&sources, name).expect(name), ips(found), "{name}");
    }
    assert_eq!(sources.candidates("a.b"), ["a.b", "a.b.nowhere.example", "a.b.corp.example"]);
    assert_eq!(sources.candidates("a"), ["a.nowhere.example", "a.corp.example", "a"]);
}

#[test]
fn a_truncated_answer_is_asked_for_again_over_tcp_and_a_forged_one_is_ignored() {
    let truncated = |mut reply: Vec<u8>| {
        reply[2] |= 0x02;
        reply.truncate(12);
        reply[4..12].fill(0);
        vec![reply]
    };
    let sources_of = |port| sources("", "nameserver 127.0.0.1", port);
    let found = find(&sources_of(server(zone, truncated)), "many.example").expect("found");
    assert_eq!(found.len(), 100);
    let forged = |reply: Vec<u8>| {
        let mut other_id = reply.clone();
        other_id[0] ^= 1;
        let mut other_name = reply.clone();
        other_name[13] ^= 1;
        let mut query = reply.clone();
        query[2] &= 0x7f;
        let _ = other_name.pop();
        vec![b"noise".to_vec(), other_id, other_name, query, reply]
    };
    let found = find(&sources_of(server(zone, forged)), "both.example").expect("found");
    assert_eq!(found, ips(&["192.0.2.1", "192.0.2.2", "::1"]));
}

#[test]
fn the_next_name_server_is_asked_if_one_fails_and_the_deadline_holds() {
    let failing = |mut reply: Vec<u8>| {
        reply[3] |= 2;
        vec![reply]
    };
    let failed = find(&sources("", "nameserver 127.0.0.1", server(|_, _| Some(Vec::new()), failing)), "x.example");
    let failed = failed.expect_err("SERVFAIL").to_string();
    assert!(failed.starts_with("name server 127.0.0.1:") && failed.ends_with("answered ServerFailure"), "{failed}");
    // Nobody listens at ::1 with this port.
    let port = server(zone, whole);
    let sources_of = |config| sources("", config, port);
    let found = find(&sources_of("nameserver ::1\nnameserver 127.0.0.1"), "both.example").expect("found");
    assert_eq!(found.len(), 3);
    let failed = find(&sources_of("nameserver ::1"), "both.example").expect_err("nobody there").to_string();
    assert!(failed.starts_with("name server [::1]:"), "{failed}");
    let silent = sources("", "nameserver 127.0.0.1", server(zone, |_| Vec::new()));
    let (began, limit) = (Instant::now(), Duration::from_millis(100));
    let failed = silent.find("both.example", began + limit).expect_err("no answer");
    assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() >= limit && began.elapsed() < SOON, "{:?}", began.elapsed());
}
