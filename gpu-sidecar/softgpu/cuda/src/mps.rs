//! Connection to MPS: the process registers with the daemon of its pipe directory when it initializes the driver.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect,
    socket_with,
};
use softgpu_wire::message::{Kind, Message};

use crate::error::{Error, Result};

/// Membership of this process in an MPS server.
#[derive(Debug)]
pub(crate) struct Mps {
    /// Connection to the daemon, which counts this process as a client while it is open.
    pub(crate) connection: OwnedFd,
    /// Number assigned to the MPS server by the software GPU's server.
    pub(crate) server: u64,
    /// Active-thread percentage in hundredths; 0 for none.
    pub(crate) percentage_hundredths: u64,
    /// Largest device memory in bytes, by unit; 0 for no limit.
    limits: Vec<u64>,
}

/// Registers with the daemon. Returns `None` if none listens: the process then runs without MPS, as with the real
/// driver.
pub(crate) fn enter() -> Result<Option<Mps>> {
    let directory = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
        .filter(|directory| !directory.is_empty())
        .map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let Ok(directory) = open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) else {
        return Ok(None);
    };
    // Through the directory's descriptor, because a socket's path is limited to 107 bytes.
    let address = format!("/proc/self/fd/{}/control", directory.as_raw_fd());
    let address =
        SocketAddrUnix::new(address.as_str()).map_err(|_| Error::MPS_CONNECTION_FAILED)?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|_| Error::OPERATING_SYSTEM)?;
    if connect(&socket, &address).is_err() {
        return Ok(None);
    }
    let pid = u64::from(std::process::id());
    Message::new(Kind::MpsEnter, &[pid])
        .send(&socket, SendFlags::empty())
        .map_err(|_| Error::MPS_CONNECTION_FAILED)?;
    let answer =
        Message::receive(&socket, RecvFlags::empty()).map_err(|_| Error::MPS_CONNECTION_FAILED)?;
    if answer.error != 0 {
        return Err(Error(answer.error));
    }
    let [server, default, ..] = answer.words;
    let limits = answer
        .bytes
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(std::array::from_fn(|at| bytes[at])));
    Ok(Some(Mps {
        connection: socket,
        server,
        percentage_hundredths: lower(default, own_percentage()),
        limits: limits.collect(),
    }))
}

/// Combines the daemon's percentage with the process's own, which may only lower it.
const fn lower(default: u64, own: u64) -> u64 {
    match (default, own) {
        (0, own) => own,
        (default, 0) => default,
        (default, own) if own < default => own,
        (default, _) => default,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to 10,000"
)]
fn own_percentage() -> u64 {
    let value = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").unwrap_or_default();
    match value.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => {
            (percent * 100.0).round().max(1.0) as u64
        }
        _ => 0,
    }
}

impl Mps {
    /// Returns whether the daemon still holds the connection.
    pub(crate) fn is_connected(&self) -> bool {
        let mut byte = [0_u8; 1];
        let seen = rustix::net::recv(
            &self.connection,
            &mut byte,
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        match seen {
            Err(Errno::AGAIN | Errno::INTR) => true,
            Ok((_, bytes)) => bytes > 0,
            Err(_) => false,
        }
    }

    /// Returns the largest device memory on a GPU in bytes: the lower of the daemon's limit and the process's own.
    pub(crate) fn limit(&self, unit: u32, gpu: usize, uuid: &str) -> Option<u64> {
        let default = self
            .limits
            .get(unit as usize)
            .copied()
            .filter(|limit| *limit > 0);
        let own = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").unwrap_or_default();
        let own = own_limit(&own, gpu, uuid);
        match (default, own) {
            (Some(default), Some(own)) => Some(default.min(own)),
            (default, own) => default.or(own),
        }
    }
}

/// Parses a list such as `0=6G,1=512M`, in which a device may also be given by its UUID; returns the limit of one GPU.
fn own_limit(list: &str, gpu: usize, uuid: &str) -> Option<u64> {
    list.split(',').find_map(|entry| {
        let (device, size) = entry.trim().split_once('=')?;
        if device.trim().parse() != Ok(gpu) && device.trim() != format!("GPU-{uuid}") {
            return None;
        }
        let size = size.trim();
        let unit = match size.chars().last()? {
            'G' | 'g' => 1 << 30,
            'M' | 'm' => 1 << 20,
            _ => return None,
        };
        size[..size.len() - 1]
            .parse::<u64>()
            .ok()?
            .checked_mul(unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_percentages_are_read_as_the_driver_reads_them() {
        assert_eq!(own_limit("0=6G,1=512M", 0, ""), Some(6 << 30));
        assert_eq!(own_limit("0=6G, 1=512M", 1, ""), Some(512 << 20));
        assert_eq!(own_limit("GPU-ab=1G", 3, "ab"), Some(1 << 30));
        assert_eq!(own_limit("0=6", 0, ""), None);
        assert_eq!(own_limit("0=99999999999999999999G", 0, ""), None);
        assert_eq!(own_limit("", 0, ""), None);
        assert_eq!(lower(0, 2_500), 2_500);
        assert_eq!(lower(5_000, 2_500), 2_500);
        assert_eq!(lower(2_500, 5_000), 2_500);
        assert_eq!(lower(2_500, 0), 2_500);
    }
}
