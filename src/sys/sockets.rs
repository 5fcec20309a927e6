//! The process at the other end of a TCP connection on this machine, as far as the kernel tells. Answers may be stale when they
//! are used: a process may pass its socket on, or close it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use super::files::list;
use super::procfs;

/// Length of the head of a message of netlink, and of a question for one socket with it, in bytes.
const HEAD: usize = 16;
const QUESTION: usize = HEAD + 56;
/// Type of a question for sockets and of its answer, and type of an error.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// State of a socket that listens. The kernel names it if no connection has the addresses.
const LISTENS: u8 = 10;

/// Tables of the network namespace of this process. A socket of IPv6 that is connected to an address of IPv4 is in the second.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// Number of times that the tables are read. A line may be left out while others appear and go.
const LOOKS: usize = 2;

/// A socket in a table of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub uid: u32,
    /// 0 if no process holds it any more.
    pub inode: u64,
}

/// Processes that may hold a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Those that do.
    pub known: Vec<i32>,
    /// Those of its user whose descriptors this process must not list, such as a server of ssh.
    pub hidden: Vec<i32>,
}

/// Returns the socket at the other end of a connection, by the addresses of both ends. `None` if no socket of this network
/// namespace has them.
///
/// # Errors
/// Fails if the kernel neither answers the question nor lets its tables be read.
pub fn other_end(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    /// Set once the kernel has found a socket. Before, it may lack the part that answers.
    static ANSWERS: AtomicBool = AtomicBool::new(false);
    match ask(theirs, ours) {
        Ok(Some(socket)) => {
            ANSWERS.store(true, Ordering::Relaxed);
            Ok(Some(socket))
        }
        Ok(None) if ANSWERS.load(Ordering::Relaxed) => Ok(None),
        Ok(None) | Err(_) => in_tables(theirs, ours),
    }
}

/// Asks the kernel for one socket, which takes no longer on a machine with many.
fn ask(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let kernel = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&kernel);
    send(fd, &question(theirs, ours), MsgFlags::empty())?;
    let mut answer = [0; 512];
    // The kernel has queued its answer by the time that `send` returns.
    let length = recv(fd, &mut answer, MsgFlags::MSG_DONTWAIT)?;
    understood(&answer[..length], theirs.port(), ours.port())
}

/// Returns a question for the socket whose own address is `local`, as `inet_diag_req_v2` of the kernel.
fn question(local: SocketAddr, remote: SocketAddr) -> [u8; QUESTION] {
    let bytes = |address: SocketAddr| {
        let mut bytes = [0; 16];
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes.copy_from_slice(&ip.octets()),
        }
        bytes
    };
    let is_ipv4 = local.ip().to_canonical().is_ipv4();
    let family = if is_ipv4 { libc::AF_INET } else { libc::AF_INET6 };
    let mut all = [0; QUESTION];
    let mut put = |at: usize, part: &[u8]| all[at..at + part.len()].copy_from_slice(part);
    put(0, &u32::try_from(QUESTION).unwrap_or_default().to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(HEAD, &[u8::try_from(family).unwrap_or_default(), TCP]);
    // In any state.
    put(HEAD + 4, &[0xff; 4]);
    put(HEAD + 8, &local.port().to_be_bytes());
    put(HEAD + 10, &remote.port().to_be_bytes());
    put(HEAD + 12, &bytes(local));
    put(HEAD + 28, &bytes(remote));
    // Whatever its cookie is.
    put(HEAD + 48, &[0xff; 8]);
    all
}

/// Returns the socket of an answer, `inet_diag_msg` of the kernel. `None` if there is none.
fn understood(answer: &[u8], local: u16, remote: u16) -> io::Result<Option<Socket>> {
    let part = |at: usize| answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let port = |at: usize| answer.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes);
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let torn = || io::Error::from(io::ErrorKind::UnexpectedEof);
    match kind.ok_or_else(torn)? {
        BY_FAMILY => {
            let (uid, inode) = part(HEAD + 64).zip(part(HEAD + 68)).ok_or_else(torn)?;
            let is_it = answer[HEAD + 1] != LISTENS && (port(HEAD + 4), port(HEAD + 6)) == (Some(local), Some(remote));
            Ok(is_it.then_some(Socket { uid, inode: inode.into() }))
        }
        ERROR => match Errno::from_raw(part(HEAD).ok_or_else(torn)?.cast_signed().wrapping_neg()) {
            Errno::ENOENT => Ok(None),
            error => Err(error.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn in_tables(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    for _ in 0..LOOKS {
        for (table, of_ipv6) in TABLES.into_iter().zip([false, true]) {
            let Some((theirs, ours)) = written(theirs, of_ipv6).zip(written(ours, of_ipv6)) else { continue };
            let text = match fs::read_to_string(table) {
                // A kernel without IPv6.
                Err(error) if of_ipv6 && error.kind() == io::ErrorKind::NotFound => continue,
                text => text?,
            };
            if let Some(socket) = find(&text, &theirs, &ours) {
                return Ok(Some(socket));
            }
        }
    }
    Ok(None)
}

/// Returns the socket with these addresses in a table, rather one that is held than one that only waits for its end.
fn find(table: &str, local: &str, remote: &str) -> Option<Socket> {
    let of_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next() == Some(local) && fields.next() == Some(remote);
        let mut fields = fields.skip(4);
        let socket = || Some(Socket { uid: fields.next()?.parse().ok()?, inode: fields.nth(1)?.parse().ok()? });
        is_it.then(socket).flatten()
    };
    table.lines().filter_map(of_line).max_by_key(|socket| socket.inode != 0)
}

/// Returns an address as the kernel writes it: words in the order of bytes of this machine. `None` if the table has none of
/// its kind.
fn written(address: SocketAddr, of_ipv6: bool) -> Option<String> {
    let bytes = match (address.ip().to_canonical(), of_ipv6) {
        (IpAddr::V4(ip), false) => ip.octets().to_vec(),
        (IpAddr::V4(ip), true) => Ipv4Addr::to_ipv6_mapped(&ip).octets().to_vec(),
        (IpAddr::V6(ip), true) => ip.octets().to_vec(),
        (IpAddr::V6(_), false) => return None,
    };
    let mut text = String::new();
    for word in bytes.as_chunks::<4>().0 {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    Some(text)
}

/// Returns the processes that hold a socket. Reads the descriptors of all processes.
///
/// # Errors
/// Fails if `/proc` cannot be listed, or the system lacks the resources to.
pub fn holders(socket: Socket) -> io::Result<Holders> {
    let link = format!("socket:[{}]", socket.inode);
    let mut holders = Holders::default();
    for pid in procfs::all()? {
        let is_it = |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|target| target == Path::new(&link));
        match list(Path::new(&format!("/proc/{pid}/fd"))) {
            Ok(fds) if fds.iter().any(is_it) => holders.known.push(pid),
            Ok(_) => {}
            Err(error) if procfs::lacks_resources(&error) => return Err(error),
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied && is_of(pid, socket.uid) {
                    holders.hidden.push(pid);
                }
            }
        }
    }
    Ok(holders)
}

/// Reports whether one of the user ids of a process is this one. The owner of its directory in `/proc` does not tell.
fn is_of(pid: i32, uid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_is_found_by_both_addresses() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 17 1 0 100 0 0 10 0\n\
            1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 18 1 0 20 4 30 10 -1\n\
            2: 0100007F:D431 0100007F:1F90 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n\
            3: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 19 1 0 20 4 30 10 -1\n\
            4: 0100007F:D432 0100007F:1F90 04 00000000:00000000 00:00000000 00000000     0        0 0 1 0\n";
        let found = |theirs: &str, ours: &str| {
            let [theirs, ours] = [theirs, ours].map(|text| written(address(text), false).expect("IPv4"));
            find(table, &theirs, &ours).map(|socket| (socket.uid, socket.inode))
        };
        assert_eq!(found("127.0.0.1:54321", "127.0.0.1:8080"), Some((1001, 19)), "not the one that waits");
        assert_eq!(found("127.0.0.1:8080", "127.0.0.1:54321"), Some((1000, 18)));
        assert_eq!(found("127.0.0.1:54322", "127.0.0.1:8080"), Some((0, 0)), "nobody holds it");
        for other in ["127.0.0.1:54323", "127.0.0.2:54321", "1.0.0.127:54321"] {
            assert_eq!(found(other, "127.0.0.1:8080"), None, "{other}");
        }
        assert_eq!(find("0: 0100007F:D431 0100007F:1F90 01", "0100007F:D431", "0100007F:1F90"), None, "torn");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_written_as_the_kernel_does() {
        let of = |text: &str, of_ipv6| written(address(text), of_ipv6);
        assert_eq!(of("127.0.0.1:80", false).as_deref(), Some("0100007F:0050"));
        assert_eq!(of("127.0.0.1:80", true).as_deref(), Some("0000000000000000FFFF00000100007F:0050"));
        assert_eq!(of("[::ffff:127.0.0.1]:80", false), of("127.0.0.1:80", false));
        assert_eq!(of("[::1]:65535", true).as_deref(), Some("00000000000000000000000001000000:FFFF"));
        assert_eq!(of("[::1]:80", false), None);
    }

    /// Ways to find a socket: the one that is used, and each by itself.
    type Way = fn(SocketAddr, SocketAddr) -> io::Result<Option<Socket>>;
    const WAYS: [Way; 3] = [other_end, in_tables, ask];

    #[test]
    fn the_other_end_is_found_with_its_process() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bound) else {
                assert_eq!(bound, "[::1]:0", "the machine has IPv4");
                continue;
            };
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            let (far, theirs) = listener.accept().expect("accepted");
            let ours = far.local_addr().expect("an address");
            let found = WAYS.map(|way| way(theirs, ours).expect("read").expect("a socket"));
            assert_eq!(found, [found[0]; 3]);
            assert_eq!(found[0].uid, rustix::process::geteuid().as_raw());
            let own = i32::try_from(std::process::id()).expect("a pid");
            assert!(holders(found[0]).expect("read").known.contains(&own));
            // The kernel would name the socket that listens.
            let free = SocketAddr::new(theirs.ip(), 1);
            assert_eq!(WAYS.map(|way| way(free, ours).expect("read")), [None; 3]);
            assert_eq!(WAYS.map(|way| way(ours, free).expect("read")), [None; 3]);
            drop(near);
            for way in WAYS {
                let gone = way(theirs, ours).expect("read");
                assert!(gone.is_none_or(|socket| socket.inode == 0), "{gone:?}");
            }
        }
    }

    /// A program that speaks IPv6 only reaches an address of IPv4 by a mapped one.
    #[test]
    fn mapped_addresses_are_the_same_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let near = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}"));
        if let Err(error) = &near {
            assert!(TcpListener::bind("[::1]:0").is_err(), "the machine has IPv6: {error}");
            return;
        }
        let (far, theirs) = listener.accept().expect("accepted");
        let ours = far.local_addr().expect("an address");
        for socket in WAYS.map(|way| way(theirs, ours).expect("read")) {
            assert!(socket.is_some_and(|socket| socket.inode != 0), "{socket:?}");
        }
    }

    #[test]
    fn answers_that_are_torn_or_of_another_socket_are_not_believed() {
        let of = |kind: u16, rest: &[u8]| {
            let head = [&[0; 4][..], &kind.to_ne_bytes(), &[0; 10]].concat();
            understood(&[&head, rest].concat(), 80, 81)
        };
        let socket = |state: u8, remote: u16| {
            let mut rest = [0; 72];
            rest[1] = state;
            rest[4..6].copy_from_slice(&80_u16.to_be_bytes());
            rest[6..8].copy_from_slice(&remote.to_be_bytes());
            rest[64..68].copy_from_slice(&1000_u32.to_ne_bytes());
            rest[68..72].copy_from_slice(&7_u32.to_ne_bytes());
            rest
        };
        assert_eq!(of(BY_FAMILY, &socket(1, 81)).expect("whole"), Some(Socket { uid: 1000, inode: 7 }));
        assert_eq!(of(BY_FAMILY, &socket(LISTENS, 81)).expect("whole"), None);
        assert_eq!(of(BY_FAMILY, &socket(1, 0)).expect("whole"), None);
        assert_eq!(of(ERROR, &(-libc::ENOENT).to_ne_bytes()).expect("whole"), None);
        assert!(of(ERROR, &(-libc::EPERM).to_ne_bytes()).is_err() && of(3, &[]).is_err());
        for length in 0..71 {
            assert!(of(BY_FAMILY, &socket(1, 81)[..length]).is_err(), "{length}");
        }
        assert!(understood(&[], 80, 81).is_err());
    }
}
