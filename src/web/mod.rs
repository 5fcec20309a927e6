//! `swarm web`: the board as a page for the browser of one person, on the loopback interface or a private socket.
//!
//! | module | contains |
//! |---|---|
//! | `guard` | who may ask: checks of the head of a request, without effects |
//! | `door` | connections: how many, and how long they may take |
//! | `hub` | the board, read only while somebody looks |
//! | `routes`, `stream` | what is answered |
//! | `acts` | the closed list of what a person can do from the page, as words of verbs |
//! | `gates` | answers to what flows ask |
//! | `files` | the page itself |
//!
//! A page gets nothing without the token, which is in the fragment of the address: browsers send it to no server, and the
//! page puts it into a header. There is no cookie, so nothing is sent by itself.

mod acts;
mod door;
mod files;
mod gates;
mod guard;
mod hub;
mod routes;
mod stream;
mod text;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;

pub use acts::Allowed;
pub use door::Listener;
pub use guard::Token;
use hub::Hub;
use routes::Site;

/// Serves until one of the descriptors is readable, which stand for signals and for the end of the terminal.
///
/// # Errors
/// Fails if the system has no descriptors or threads left.
pub fn serve(listener: Listener, token: Token, allowed: Allowed, paths: Paths, ends: Vec<OwnedFd>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let served = runtime.block_on(async {
        let hub = Hub::start(&paths)?;
        let router = routes::router(Arc::new(Site::new(hub, token, allowed, paths)));
        let serving = door::serve(listener, router)?;
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
