//! `nvidia-cuda-mps-server`: what softgpu's server knows as an MPS server, as long as it lives.
//!
//! It has the daemon at its standard input, a socket, and hands on what one of the two says to the other. It ends when either
//! of them does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::message::{Kind, Message, MessageError, Role, VERSION};
use softgpu_wire::place::{self, PlaceError};

use crate::{SERVER, say_error, timespec};

/// softgpu's server has to answer the first questions within this time.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`.
pub(crate) const CONNECTION_FAILED: u32 = 805;

/// Why there is no MPS server.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("the folder of the program is not known")]
    Folder,
    #[error("{0}")]
    Place(#[from] PlaceError),
    #[error("softgpu-server: {0}")]
    Message(#[from] MessageError),
    #[error("softgpu-server has not answered within {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("softgpu-server refuses with error {0}")]
    Refused(u32),
    #[error("softgpu-server answers another question")]
    Other,
}

impl From<Errno> for ServerError {
    fn from(error: Errno) -> Self {
        Self::Message(error.into())
    }
}

pub(crate) fn main() -> ExitCode {
    // Its name where processes are listed, cut to the fifteen bytes there are.
    let _named = rustix::thread::set_name(c"nvidia-cuda-mps");
    let input = std::io::stdin();
    let daemon = input.as_fd();
    let (answer, device) = match enter() {
        Ok((device, number)) => (Message::new(Kind::MpsServer, &[number]), Some(device)),
        Err(error) => (
            Message::refusal(Kind::MpsServer, CONNECTION_FAILED)
                .with_bytes(error.to_string().into_bytes()),
            None,
        ),
    };
    match answer.send(daemon, SendFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOTSOCK) => {
            say_error(&format!("{SERVER} is started by nvidia-cuda-mps-control"));
            return ExitCode::FAILURE;
        }
        Err(_) => return ExitCode::FAILURE,
    }
    device.map_or(ExitCode::FAILURE, |device| relay(daemon, device.as_fd()))
}

/// Becomes an MPS server, with a number.
fn enter() -> Result<(OwnedFd, u64), ServerError> {
    let program = std::env::current_exe().ok();
    let own = program.as_deref().and_then(|program| program.parent());
    let folder = place::folder(own).ok_or(ServerError::Folder)?;
    let server: PathBuf = own.ok_or(ServerError::Folder)?.join(place::SERVER);
    let device = place::connect_or_start(&folder, &server, |_| {})?;
    let hello = Message::new(Kind::Hello, &[VERSION, Role::Mps as u64]);
    ask(&device, &hello.with_bytes(SERVER.as_bytes().to_vec()))?;
    let number = ask(&device, &Message::new(Kind::MpsServer, &[]))?.words[0];
    Ok((device, number))
}

fn ask(device: &OwnedFd, question: &Message) -> Result<Message, ServerError> {
    question.send(device, SendFlags::empty())?;
    let begin = Instant::now();
    loop {
        let left = ANSWER_MAX.saturating_sub(begin.elapsed());
        let timeout = timespec(left);
        let mut fds = [PollFd::new(device, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(ServerError::Silent),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let answer = Message::receive(device, RecvFlags::empty())?;
        return match answer.error {
            0 if answer.kind == question.kind => Ok(answer),
            0 => Err(ServerError::Other),
            error => Err(ServerError::Refused(error)),
        };
    }
}

/// Hands on what one says to the other, until one is gone. The daemon's going is its way to end a server.
fn relay(daemon: BorrowedFd<'_>, device: BorrowedFd<'_>) -> ExitCode {
    loop {
        let mut fds = [
            PollFd::new(&daemon, PollFlags::IN),
            PollFd::new(&device, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return ExitCode::FAILURE,
        }
        let [from_daemon, from_device] = fds.map(|fd| !fd.revents().is_empty());
        if from_daemon && !hand_on(daemon, device) {
            return ExitCode::SUCCESS;
        }
        if from_device && !hand_on(device, daemon) {
            return ExitCode::FAILURE;
        }
    }
}

/// Whether it could.
fn hand_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> bool {
    Message::receive(from, RecvFlags::empty())
        .is_ok_and(|message| message.send(to, SendFlags::empty()).is_ok())
}
