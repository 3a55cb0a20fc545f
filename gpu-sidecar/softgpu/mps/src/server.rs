//! `nvidia-cuda-mps-server`: registered with softgpu's server as an MPS server while it runs.
//!
//! Its standard input is a socket of the daemon. It forwards messages between the daemon and softgpu's server, and ends
//! with either.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::message::{Kind, Message, MessageError, Role, VERSION};
use softgpu_wire::softgpu_dir::{self, SoftGpuDirError};

use crate::{SERVER, report_error, timespec};

/// Largest time for softgpu's server to answer the first requests.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`, reported when the server cannot start.
pub(crate) const CONNECTION_FAILED: u32 = 805;

/// A failure to start the server.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("cannot determine the folder of this program")]
    Folder,
    #[error("{0}")]
    Dir(#[from] SoftGpuDirError),
    #[error("softgpu-server: {0}")]
    Message(#[from] MessageError),
    #[error("softgpu-server did not answer within {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("softgpu-server returned error {0}")]
    Refused(u32),
    #[error("softgpu-server returned the answer to another request")]
    Other,
}

impl From<Errno> for ServerError {
    fn from(error: Errno) -> Self {
        Self::Message(error.into())
    }
}

pub(crate) fn main() -> ExitCode {
    // Name in process lists, which show at most fifteen bytes.
    let _named = rustix::thread::set_name(c"nvidia-cuda-mps");
    let input = std::io::stdin();
    let daemon = input.as_fd();
    let (answer, device) = match register() {
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
            report_error(&format!("{SERVER} is started by nvidia-cuda-mps-control"));
            return ExitCode::FAILURE;
        }
        Err(_) => return ExitCode::FAILURE,
    }
    device.map_or(ExitCode::FAILURE, |device| relay(daemon, device.as_fd()))
}

/// Registers as an MPS server; returns the connection and the assigned number.
fn register() -> Result<(OwnedFd, u64), ServerError> {
    let program = std::env::current_exe().ok();
    let own = program.as_deref().and_then(|program| program.parent());
    let folder = softgpu_dir::locate(own).ok_or(ServerError::Folder)?;
    let server: PathBuf = own.ok_or(ServerError::Folder)?.join(softgpu_dir::SERVER);
    let device = softgpu_dir::connect_or_start(&folder, &server, |_| {})?;
    let hello = Message::new(Kind::Hello, &[VERSION, Role::Mps as u64]);
    request(&device, &hello.with_bytes(SERVER.as_bytes().to_vec()))?;
    let number = request(&device, &Message::new(Kind::MpsServer, &[]))?.words[0];
    Ok((device, number))
}

fn request(device: &OwnedFd, message: &Message) -> Result<Message, ServerError> {
    message.send(device, SendFlags::empty())?;
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
            0 if answer.kind == message.kind => Ok(answer),
            0 => Err(ServerError::Other),
            error => Err(ServerError::Refused(error)),
        };
    }
}

/// Forwards messages in both directions until one side is gone. The daemon ends a server by closing its side.
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
        if from_daemon && !forward(daemon, device) {
            return ExitCode::SUCCESS;
        }
        if from_device && !forward(device, daemon) {
            return ExitCode::FAILURE;
        }
    }
}

/// Forwards one message; returns whether that succeeded.
fn forward(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> bool {
    Message::receive(from, RecvFlags::empty())
        .is_ok_and(|message| message.send(to, SendFlags::empty()).is_ok())
}
