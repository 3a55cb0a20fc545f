//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that the kernel holds for us until they are accepted; the kernel's own bound may be lower.
const BACKLOG: i32 = 4096;

/// A port that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    address: SocketAddr,
    error: io::Error,
}

/// Listens on `ip`:`port`; on all IPv6 and IPv4 interfaces if `ip` is `::`, on the IPv4 ones where the
/// machine has no IPv6.
///
/// # Errors
/// The address, and what the kernel says.
pub fn listen(ip: IpAddr, port: u16) -> Result<TcpListener, ListenError> {
    let address = SocketAddr::new(ip, port);
    match bind(address) {
        Err(error) if ip.is_unspecified() && ip.is_ipv6() && is_without_ipv6(&error) => {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
            bind(address).map_err(|error| ListenError { address, error })
        }
        bound => bound.map_err(|error| ListenError { address, error }),
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
    ) || error.raw_os_error() == Some(97) // EAFNOSUPPORT has no kind of its own on stable.
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A restarted container finds the connections of the one before it in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
