//! What changes while programs run: asked of the server, as long as there is one.
//!
//! Nothing here starts a server. Where nobody listens, or one that has another configuration than this library was
//! initialised with, or one that does not answer within half a second, the answer is `None`: a GPU on which nothing runs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, Role, VERSION};
use softgpu_wire::place;

/// An answer has to come within this time.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// A connection to the server of a folder, made anew when it has ended.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    socket: Option<OwnedFd>,
}

/// What the server answered.
#[derive(Debug)]
pub(crate) enum Told {
    /// What was asked for.
    Answer(Message),
    /// It cannot be done, as the driver API numbers errors. All that is asked for here can be, unless the GPU is lost.
    Refusal,
}

impl Server {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            socket: None,
        }
    }

    /// The configuration of the server that runs now, if one does.
    pub(crate) fn config(&mut self) -> Option<Config> {
        let (socket, config) = greet(&self.folder)?;
        self.socket = Some(socket);
        Some(config)
    }

    /// Asks; a connection that has ended is made anew once. `config` is what the server has to have.
    pub(crate) fn ask(&mut self, config: &Config, kind: Kind, words: &[u64]) -> Option<Told> {
        for _ in 0..2 {
            let socket = match self.socket.take() {
                Some(socket) => socket,
                None => connect(&self.folder, config)?,
            };
            if let Some(answer) = ask(&socket, &Message::new(kind, words)) {
                self.socket = Some(socket);
                return Some(match answer.error {
                    0 => Told::Answer(answer),
                    _ => Told::Refusal,
                });
            }
        }
        None
    }

    /// A connection of its own on which errors of GPUs are told from now on, and those that were told before the answer
    /// came.
    pub(crate) fn watch(&self, config: &Config) -> Option<(OwnedFd, Vec<Message>)> {
        let socket = connect(&self.folder, config)?;
        let request = Message::new(Kind::Watch, &[]);
        request.send(&socket, SendFlags::DONTWAIT).ok()?;
        let mut told = Vec::new();
        loop {
            let message = Message::receive(&socket, RecvFlags::empty()).ok()?;
            if message.kind == Kind::Watch {
                return (message.error == 0).then_some((socket, told));
            }
            told.push(message);
        }
    }
}

/// One request, one answer; `None`: the connection is of no use any more.
fn ask(socket: &OwnedFd, request: &Message) -> Option<Message> {
    request.send(socket, SendFlags::DONTWAIT).ok()?;
    let answer = Message::receive(socket, RecvFlags::empty()).ok()?;
    (answer.kind == request.kind).then_some(answer)
}

fn connect(folder: &Path, config: &Config) -> Option<OwnedFd> {
    let (socket, own) = greet(folder)?;
    (own == *config).then_some(socket)
}

/// Connects and says hello.
fn greet(folder: &Path) -> Option<(OwnedFd, Config)> {
    let socket = place::connect_in(folder).ok()??;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX)).ok()?;
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_name().unwrap_or_default();
    let hello = Message::new(Kind::Hello, &[VERSION, Role::Observer as u64])
        .with_bytes(name.as_encoded_bytes().to_vec());
    let answer = ask(&socket, &hello)?;
    let text = String::from_utf8(answer.bytes).ok()?;
    let config = Config::parse(&text).ok()?;
    (answer.error == 0).then_some((socket, config))
}
