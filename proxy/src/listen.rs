//! Listening TCP sockets, on IPv6 and IPv4.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Largest number of connections that wait in the kernel to be accepted; the kernel's own limit may be lower.
const BACKLOG: i32 = 4096;

/// Failure to listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    address: SocketAddr,
    error: io::Error,
}

/// Listens on `ip`:`port`. If `ip` is `::`, it listens on all IPv6 and IPv4 interfaces, or on the IPv4 ones if the
/// machine has no IPv6.
///
/// # Errors
/// Returns the address and the system's error if it cannot be bound.
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
    // Connections of the previous container may still be in TIME_WAIT after a restart.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
