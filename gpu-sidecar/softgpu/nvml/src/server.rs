//! Variable state, queried from the server while one runs.
//!
//! This module never starts a server. Without a server, or if its configuration differs from the one at initialization,
//! or if it does not answer within half a second, queries return `None`: an idle GPU.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, Role, VERSION};
use softgpu_wire::softgpu_dir;

/// Largest time to wait for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Connection to the server of a folder, re-established when it has ended.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    socket: Option<OwnedFd>,
}

/// Reply of the server.
#[derive(Debug)]
pub(crate) enum ServerReply {
    /// Answer to the request.
    Answer(Message),
    /// Error as a `CUresult`. Requests of this library fail only if the GPU is lost.
    Refusal,
}

impl Server {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            socket: None,
        }
    }

    /// Returns the configuration of the running server, if any.
    pub(crate) fn config(&mut self) -> Option<Config> {
        let (socket, config) = greet(&self.folder)?;
        self.socket = Some(socket);
        Some(config)
    }

    /// Sends a request; reconnects once if the connection has ended. The server must have the configuration `config`.
    pub(crate) fn query(
        &mut self,
        config: &Config,
        kind: Kind,
        words: &[u64],
    ) -> Option<ServerReply> {
        for _ in 0..2 {
            let socket = match self.socket.take() {
                Some(socket) => socket,
                None => connect(&self.folder, config)?,
            };
            if let Some(answer) = query(&socket, &Message::new(kind, words)) {
                self.socket = Some(socket);
                return Some(match answer.error {
                    0 => ServerReply::Answer(answer),
                    _ => ServerReply::Refusal,
                });
            }
        }
        None
    }

    /// Opens a connection of its own that receives errors of GPUs; also returns those received before the subscription
    /// was confirmed.
    pub(crate) fn watch(&self, config: &Config) -> Option<(OwnedFd, Vec<Message>)> {
        let socket = connect(&self.folder, config)?;
        let request = Message::new(Kind::Watch, &[]);
        request.send(&socket, SendFlags::DONTWAIT).ok()?;
        let mut received = Vec::new();
        loop {
            let message = Message::receive(&socket, RecvFlags::empty()).ok()?;
            if message.kind == Kind::Watch {
                return (message.error == 0).then_some((socket, received));
            }
            received.push(message);
        }
    }
}

/// Sends a request and receives its answer; `None` means that the connection is unusable.
fn query(socket: &OwnedFd, request: &Message) -> Option<Message> {
    request.send(socket, SendFlags::DONTWAIT).ok()?;
    let answer = Message::receive(socket, RecvFlags::empty()).ok()?;
    (answer.kind == request.kind).then_some(answer)
}

fn connect(folder: &Path, config: &Config) -> Option<OwnedFd> {
    let (socket, own) = greet(folder)?;
    (own == *config).then_some(socket)
}

/// Connects and introduces this library; returns the server's configuration.
fn greet(folder: &Path) -> Option<(OwnedFd, Config)> {
    let socket = softgpu_dir::connect_in(folder).ok()??;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX)).ok()?;
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_name().unwrap_or_default();
    let hello = Message::new(Kind::Hello, &[VERSION, Role::Observer as u64])
        .with_bytes(name.as_encoded_bytes().to_vec());
    let answer = query(&socket, &hello)?;
    let text = String::from_utf8(answer.bytes).ok()?;
    let config = Config::parse(&text).ok()?;
    (answer.error == 0).then_some((socket, config))
}
