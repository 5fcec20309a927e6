//! Looks up host names without the C library: addresses and `localhost` directly, then the hosts file, then the name
//! servers of `resolv.conf`. `getaddrinfo` of a statically linked glibc loads modules of whichever glibc is installed,
//! and can crash in them. A lookup ends at its deadline; other sources of `nsswitch.conf` (mdns, sss) are not asked.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use resolv_conf::{Config, ScopedIp};
use rustix::rand::{GetRandomFlags, getrandom};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, TYPE};

/// Maximum size of the hosts file and of `resolv.conf`, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum time to wait for one answer of a name server. `resolv.conf` may set less.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Maximum time to wait for IPv6 addresses if there are IPv4 addresses.
const MORE_MAX: Duration = Duration::from_secs(1);
/// A UDP answer has at most 512 bytes without EDNS; some servers ignore that.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Sources of addresses.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    /// Text of the hosts file.
    pub(super) hosts: String,
    pub(super) config: Config,
    /// Port of the name servers.
    pub(super) port: u16,
}

impl Sources {
    /// Reads the files of this system. A missing file is like an empty one.
    pub(super) fn system() -> Self {
        let (mut config, _) = Config::parse_with_errors(read(Path::new("/etc/resolv.conf")).as_bytes());
        config.glibc_normalize();
        Self { hosts: read(Path::new("/etc/hosts")), config, port: 53 }
    }

    /// Returns the addresses of a host, IPv4 first; none if the name has no address.
    ///
    /// # Errors
    /// `TimedOut` if the deadline passes first. Otherwise fails with the answer of the last name server that was asked.
    pub(super) fn find(&self, name: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let plain = name.strip_suffix('.').unwrap_or(name);
        let last = plain.rsplit('.').next().unwrap_or_default();
        if last.eq_ignore_ascii_case("localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let found = in_hosts(&self.hosts, plain);
        if !found.is_empty() {
            return Ok(found);
        }
        let mut failed = None;
        for candidate in self.candidates(name) {
            match self.addresses(&candidate, deadline) {
                Ok(found) if found.is_empty() => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(error) => failed = Some(error),
                found => return found,
            }
        }
        failed.map_or_else(|| Ok(Vec::new()), Err)
    }

    /// Returns the names to ask for: the name itself and with each search domain appended.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(plain) = name.strip_suffix('.') {
            return vec![plain.to_owned()];
        }
        let search = self.config.get_last_search_or_domain().map(|domain| domain.trim_matches('.'));
        let mut names: Vec<String> =
            search.filter(|domain| !domain.is_empty()).map(|domain| format!("{name}.{domain}")).collect();
        let dots = name.matches('.').count();
        let at = if dots >= self.config.ndots as usize { 0 } else { names.len() };
        names.insert(at, name.to_owned());
        names
    }

    fn addresses(&self, name: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
        let four = self.ask(name, TYPE::A, deadline);
        let has_four = four.as_ref().is_ok_and(|found| !found.is_empty());
        let soon = if has_four { deadline.min(Instant::now() + MORE_MAX) } else { deadline };
        let six = self.ask(name, TYPE::AAAA, soon);
        match (four, six) {
            (Ok(four), Ok(six)) => Ok(four.into_iter().chain(six).collect()),
            (Ok(found), Err(_)) if has_four => Ok(found),
            (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Asks the name servers in turn, until one of them knows.
    fn ask(&self, name: &str, kind: TYPE, deadline: Instant) -> io::Result<Vec<IpAddr>> {
        let pause = ANSWER_MAX.min(Duration::from_secs(self.config.timeout.max(1).into()));
        let mut failed = io::ErrorKind::TimedOut.into();
        for _ in 0..self.config.attempts.max(1) {
            for server in self.config.get_nameservers_or_local() {
                let until = deadline.min(Instant::now() + pause);
                let asked = address(&server, self.port).and_then(|server| exchange(server, name, kind, until));
                match asked {
                    Ok(found) => return Ok(found),
                    Err(error) => failed = error,
                }
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        Err(failed)
    }
}

fn read(path: &Path) -> String {
    let mut text = Vec::new();
    let _ = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the addresses of a name in a hosts file, IPv4 first.
fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = words.next().and_then(|word| word.parse().ok());
        if let Some(address) = address
            && words.any(|word| word.strip_suffix('.').unwrap_or(word).eq_ignore_ascii_case(name))
        {
            found.push(address);
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

fn address(server: &ScopedIp, port: u16) -> io::Result<SocketAddr> {
    match server {
        ScopedIp::V4(ip) => Ok((*ip, port).into()),
        ScopedIp::V6(ip, None) => Ok((*ip, port).into()),
        ScopedIp::V6(ip, Some(scope)) => {
            let index = || std::fs::read_to_string(format!("/sys/class/net/{scope}/ifindex")).ok()?.trim().parse().ok();
            let scope = scope.parse().ok().or_else(index).ok_or(io::ErrorKind::AddrNotAvailable)?;
            Ok(SocketAddrV6::new(*ip, port, 0, scope).into())
        }
    }
}

/// Asks one name server over UDP, and over TCP if the answer is truncated.
fn exchange(server: SocketAddr, name: &str, kind: TYPE, until: Instant) -> io::Result<Vec<IpAddr>> {
    let mut id = [0; 2];
    getrandom(&mut id, GetRandomFlags::empty())?;
    let id = u16::from_be_bytes(id);
    let asked = Name::new(name).map_err(io::Error::other)?;
    let mut query = Packet::new_query(id);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    query.questions.push(Question::new(asked.clone(), kind.into(), CLASS::IN.into(), false));
    let query = query.build_bytes_vec().map_err(io::Error::other)?;
    let is_answer = |packet: &Packet<'_>| {
        let is_question = |question: &Question<'_>| question.qname == asked && question.qtype == QTYPE::TYPE(kind);
        packet.id() == id && packet.has_flags(PacketFlag::RESPONSE) && packet.questions.iter().all(is_question)
    };

    let local: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0))?;
    socket.connect(server)?;
    socket.send(&query)?;
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let count = socket.recv(&mut buffer).map_err(|error| judged(server, error))?;
        // What is not an answer to this question may come from anybody.
        let Some(packet) = Packet::parse(&buffer[..count]).ok().filter(is_answer) else { continue };
        if !packet.has_flags(PacketFlag::TRUNCATION) {
            return addresses_in(&packet, server);
        }
        let bytes = over_tcp(server, &query, until).map_err(|error| judged(server, error))?;
        let packet = Packet::parse(&bytes).ok().filter(is_answer);
        let packet = packet.ok_or_else(|| io::Error::other(format!("name server {server} sent no valid answer")))?;
        return addresses_in(&packet, server);
    }
}

fn over_tcp(server: SocketAddr, query: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), query].concat())?;
    let mut read = |bytes: &mut [u8]| {
        let mut at = 0;
        while at < bytes.len() {
            stream.set_read_timeout(Some(left(until)?))?;
            match stream.read(&mut bytes[at..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                count => at += count,
            }
        }
        Ok(())
    };
    let mut length = [0; 2];
    read(&mut length)?;
    let mut bytes = vec![0; u16::from_be_bytes(length).into()];
    read(&mut bytes)?;
    Ok(bytes)
}

/// Returns all addresses in the answer: a recursive name server has followed the aliases.
fn addresses_in(packet: &Packet<'_>, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
    match packet.rcode() {
        RCODE::NoError | RCODE::NameError => {}
        code => return Err(io::Error::other(format!("name server {server} answered {code:?}"))),
    }
    let address = |data: &RData<'_>| match data {
        RData::A(a) => Some(IpAddr::from(Ipv4Addr::from(a.address))),
        RData::AAAA(aaaa) => Some(IpAddr::from(Ipv6Addr::from(aaaa.address))),
        _ => None,
    };
    Ok(packet.answers.iter().filter_map(|record| address(&record.rdata)).collect())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Names the server in an error, unless it is a timeout.
fn judged(server: SocketAddr, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::ErrorKind::TimedOut.into(),
        kind => io::Error::new(kind, format!("name server {server}: {error}")),
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
