//! `swarm mcp`: the fleet as tools of the Model Context Protocol, for agents.
//!
//! The protocol itself is `rmcp`, used only here. Everything a tool does is a verb, executed as a process (`crate::verbs`): `tools`
//! is the table of tools, `words` makes the command line of a call, `show` and `pages` what the client sees of its output.

mod limits;
mod pages;
mod server;
mod show;
mod streams;
mod tools;
mod waiting;
mod words;

use std::io;
use std::time::Duration;

use rmcp::service::{ServerInitializeError, serve_server};
use rmcp::transport::async_rw::AsyncRwTransport;
use swarm_sys::paths::Paths;
use tokio::sync::watch;

pub use limits::Limits;
use server::Server;
use streams::{Client, Streams};
pub use tools::Allowed;

/// Maximum length of a message in bytes. Longer ones are dropped.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// Maximum time after the end of the input for answers that are on their way.
const CLOSING_MAX: Duration = Duration::from_secs(5);
/// Maximum time for the client to read the last answers.
const WRITING_MAX: Duration = Duration::from_secs(2);

/// How a session has ended, if not well.
#[derive(Debug)]
pub enum End {
    /// The client has not begun as the protocol demands.
    NoProtocol,
    System(io::Error),
}

/// Serves the client at standard input and output until it ends its input.
///
/// # Errors
/// Fails if the client speaks no version of the protocol, or the system has no descriptors or threads left.
pub fn serve(allowed: Allowed, limits: Limits, paths: Paths) -> Result<(), End> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(End::System)?;
    let (result, written) = runtime.block_on(session(allowed, limits, paths))?;
    // Ends the verbs that read.
    runtime.shutdown_background();
    streams::finish(&written, WRITING_MAX);
    result
}

type Ended = (Result<(), End>, std::sync::mpsc::Receiver<()>);

async fn session(allowed: Allowed, limits: Limits, paths: Paths) -> Result<Ended, End> {
    let (tell, mut client) = watch::channel(Client::Here);
    let Streams { input, output, written } = Streams::start(&tell).map_err(End::System)?;
    let server = Server::new(allowed, limits, paths, client.clone());
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MESSAGE_MAX);
    let serving = async {
        match serve_server(server, transport).await {
            Ok(running) => {
                let _ = running.waiting().await;
                Ok(())
            }
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(_) => Err(End::NoProtocol),
        }
    };
    let closed = async {
        streams::leaves(&mut client).await;
        if *client.borrow() == Client::Silent {
            let gone = client.wait_for(|client| *client == Client::Gone);
            let _ = tokio::time::timeout(CLOSING_MAX, gone).await;
        }
    };
    let result = tokio::select! {
        result = serving => result,
        () = closed => Ok(()),
    };
    Ok((result, written))
}
