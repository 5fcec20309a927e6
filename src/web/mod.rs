//! `swarm web`: the board as a page for the browser of one person, on the loopback interface or a private socket.
//!
//! | module | contains |
//! |---|---|
//! | `guard` | who may ask: checks of the head of a request, without effects |
//! | `codes` | codes of addresses, each of which is exchanged once for the token |
//! | `peer` | the process at the other end of a connection: that of a person, or one below a worker |
//! | `door` | connections: how many, of whom, and how long they may take |
//! | `terminal`, `notice` | Further addresses on Enter, and messages to the person |
//! | `hub` | the board, read only while somebody looks |
//! | `enter` | the exchange of a code, and the check that a person acts |
//! | `routes`, `stream` | what is answered |
//! | `acts` | the closed list of what a person can do from the page, as words of verbs |
//! | `gates` | answers to what flows ask |
//! | `files` | the page itself |
//!
//! A page gets nothing without the token, which it puts into a header. There is no cookie, so nothing is sent by itself. It gets
//! the token for the code in the fragment of the address, which browsers send to no server, and which can be used once.

mod acts;
mod codes;
mod door;
mod enter;
mod files;
mod gates;
mod guard;
mod hub;
mod notice;
mod peer;
mod routes;
mod stream;
mod terminal;
mod text;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;

pub use acts::Allowed;
pub use codes::Codes;
pub use door::Listener;
use hub::Hub;
pub use notice::{Notice, Tell};
pub use peer::Above;
use routes::Site;

/// All that a server needs.
pub struct Server {
    pub paths: Paths,
    pub allowed: Allowed,
    pub codes: Arc<Codes>,
    pub above: Above,
    pub tell: Tell,
    /// Terminal on which Enter makes a further address.
    pub terminal: Option<OwnedFd>,
    /// Descriptors that stand for signals and for the end of the terminal.
    pub ends: Vec<OwnedFd>,
}

/// Serves until one of the ends is readable.
///
/// # Errors
/// Fails if the system has no descriptors, threads or random bits left.
pub fn serve(listener: Listener, server: Server) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let served = runtime.block_on(async {
        let hub = Hub::start(&server.paths)?;
        let site = Arc::new(Site::new(hub, &server)?);
        let serving = door::serve(listener, routes::router(site))?;
        let Server { codes, tell, terminal, ends, .. } = server;
        if let Some(terminal) = terminal {
            tokio::spawn(terminal::renew(terminal, codes, tell));
        }
        let mut ending = tokio::task::JoinSet::new();
        for end in ends {
            let end = Readable::new(end)?;
            ending.spawn(async move { end.wait_for_end().await });
        }
        tokio::select! {
            () = serving => {}
            _ = ending.join_next() => {}
        }
        Ok(())
    });
    // Verbs that read end with it. Those that act go on, and a capture that tmux does not answer is not waited for.
    runtime.shutdown_background();
    served
}
