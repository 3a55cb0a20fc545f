//! Network namespaces, for programs that listen on fixed ports of every address.
//!
//! Created with iproute2's `ip`, which requires root. Addresses are from 198.18.0.0/15, which no network routes (RFC 2544).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// First address of the range.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// Number of subnets with 256 addresses each, one for each link.
const SUBNETS: u32 = 1 << 9;
/// Folder in which `ip netns exec` finds replacements of files in `/etc`.
const FILES: &str = "/etc/netns";
const NAME_PREFIX: &str = "weir-";
/// Largest number of subnets tried.
const ATTEMPTS_MAX: usize = 8;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Reason for which no network could be created.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// `ip` cannot be executed.
    #[error("ip (of iproute2) cannot be run: {0}")]
    Missing(#[source] io::Error),
    /// `ip` failed, as it does without root.
    #[error("ip {arguments}: {reason}")]
    Failed {
        /// Arguments of the failed `ip` command.
        arguments: String,
        /// Error output of the failed command.
        reason: String,
    },
    /// The hosts file cannot be written.
    #[error("{}: {reason}", path.display())]
    Hosts {
        /// Path of the file or its folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        reason: io::Error,
    },
}

/// A network namespace with an Ethernet link to another. Removed when dropped; processes in it must have ended before.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Address of the link's end inside.
    pub inside: Ipv4Addr,
    /// Address of the link's outer end.
    pub outside: Ipv4Addr,
    /// Interface name of the link's outer end.
    interface: String,
    /// Number of addresses added to the link's outer end.
    added: AtomicU8,
}

impl Network {
    /// Creates a namespace linked to the caller's. Inside of it, `names` resolve to the link's outer end.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn new(names: &[&str]) -> Result<Self, NetworkError> {
        remove_leftovers();
        let network = Self::linked(&[])?;
        let folder = Path::new(FILES).join(&network.name);
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        for name in names {
            let _infallible = writeln!(hosts, "{} {name}", network.outside);
        }
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("hosts"), hosts))
            .map_err(|reason| NetworkError::Hosts {
                path: folder,
                reason,
            })?;
        Ok(network)
    }

    /// Creates a namespace linked to this one, through which the caller reaches it.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn behind(&self) -> Result<Self, NetworkError> {
        let forwarding = ["sysctl", "-qw", "net.ipv4.ip_forward=1"];
        ip(&[&["netns", "exec", &self.name], &forwarding[..]].concat())?;
        let network = Self::linked(&["-n", &self.name])?;
        let gateway = self.inside.to_string();
        ip(&["route", "add", &network.inside.to_string(), "via", &gateway])?;
        Ok(network)
    }

    /// Returns another address of the link's outer end, where only the caller listens. There are 250 of them.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn another_outside(&self) -> Result<Ipv4Addr, NetworkError> {
        let number = self.added.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::from(u32::from(self.inside) + 1 + u32::from(number));
        ip(&[
            "addr",
            "add",
            &format!("{address}/32"),
            "dev",
            &self.interface,
        ])?;
        Ok(address)
    }

    /// Creates a linked namespace. `outer` are the options that make `ip` act in the namespace of the link's outer end.
    fn linked(outer: &[&str]) -> Result<Self, NetworkError> {
        let own = std::process::id();
        let outer = |arguments: &[&str]| ip(&[outer, arguments].concat());
        let mut attempts = 0;
        let network = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            // Far from those of a process with the next PID.
            let subnet = own.wrapping_mul(61).wrapping_add(number) % SUBNETS;
            let network = Self {
                name: format!("{NAME_PREFIX}{own}-{number}"),
                outside: Ipv4Addr::from(FIRST + 256 * subnet + 1),
                inside: Ipv4Addr::from(FIRST + 256 * subnet + 2),
                interface: format!("weir{subnet}"),
                added: AtomicU8::new(0),
            };
            let name = &*network.name;
            ip(&["netns", "add", name])?;
            let link = outer(&[
                "link",
                "add",
                &network.interface,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            ]);
            attempts += 1;
            match link {
                Ok(()) => break network,
                // Another process has taken this subnet.
                Err(NetworkError::Failed { .. }) if attempts < ATTEMPTS_MAX => {}
                Err(error) => return Err(error),
            }
        };
        let interface = &*network.interface;
        outer(&[
            "addr",
            "add",
            &format!("{}/24", network.outside),
            "dev",
            interface,
        ])?;
        outer(&["link", "set", interface, "up"])?;
        for arguments in [
            &[
                "addr",
                "add",
                &format!("{}/24", network.inside),
                "dev",
                "eth0",
            ][..],
            &["link", "set", "lo", "up"],
            &["link", "set", "eth0", "up"],
            &[
                "route",
                "add",
                "default",
                "via",
                &network.outside.to_string(),
            ],
        ] {
            ip(&[&["-n", &network.name], arguments].concat())?;
        }
        Ok(network)
    }

    /// Returns the program and arguments which execute another program inside, in the same process.
    #[must_use]
    pub fn entrance(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn ip(arguments: &[&str]) -> Result<(), NetworkError> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("ip")
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .map_err(NetworkError::Missing)?;
    if output.status.success() {
        return Ok(());
    }
    Err(NetworkError::Failed {
        arguments: arguments.join(" "),
        reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Deletes a namespace with its links.
fn remove(name: &str) {
    // The namespace may not exist yet.
    let _removed = ip(&["netns", "del", name]);
    let _removed = fs::remove_dir_all(Path::new(FILES).join(name));
}

/// Removes the namespaces of killed processes.
fn remove_leftovers() {
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten();
    for namespace in namespaces.filter_map(Result::ok) {
        let name = namespace.file_name();
        let Some(name) = name.to_str() else { continue };
        let pid = name.strip_prefix(NAME_PREFIX);
        let pid = pid.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(name);
        }
    }
}
