//! Commands of the front end.

use std::time::Duration;

use crate::settings::{Percentage, parse_limit, parse_priority};

/// Largest length of a command line in bytes.
pub(crate) const LINE_MAX: usize = 4096;

/// A command of the front end, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    ServerList,
    ServerStatus {
        server: u32,
    },
    StartServer {
        uid: u32,
        is_multiuser: bool,
    },
    ShutdownServer {
        server: Option<u32>,
        is_forced: bool,
    },
    ClientList {
        server: u32,
    },
    DeviceClientList {
        server: Option<u32>,
    },
    ProcessList {
        server: Option<u32>,
    },
    SetDefaultPercentage(Percentage),
    DefaultPercentage,
    SetPercentage {
        server: u32,
        percentage: Percentage,
    },
    Percentage {
        server: u32,
    },
    SetDefaultLimit {
        device: String,
        bytes: u64,
    },
    DefaultLimit {
        device: String,
    },
    SetLimit {
        server: u32,
        device: String,
        bytes: u64,
    },
    Limit {
        server: u32,
        device: String,
    },
    SetDefaultPriority(u8),
    DefaultPriority,
    TerminateClient {
        server: u32,
        client: u32,
    },
    Quit {
        wait: Option<Duration>,
    },
    Help,
}

/// An invalid command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("Unrecognized command: {0}")]
    Unknown(String),
    #[error("Usage: {0}")]
    Usage(&'static str),
    #[error("Invalid {what}: {text}")]
    Value { what: &'static str, text: String },
    #[error("Command is longer than {LINE_MAX} bytes")]
    TooLong,
}

/// Name, usage and purpose of each command.
const COMMANDS: &[(&str, &str, &str)] = &[
    (
        "get_server_list",
        "get_server_list",
        "list the PIDs of all servers",
    ),
    (
        "get_server_status",
        "get_server_status PID",
        "status of a server",
    ),
    (
        "start_server",
        "start_server -uid UID [-multiuser]",
        "start a server for a user",
    ),
    (
        "shutdown_server",
        "shutdown_server [PID] [-f]",
        "end a server once its clients are gone, or with -f at once",
    ),
    (
        "get_client_list",
        "get_client_list PID",
        "list the PIDs of a server's clients",
    ),
    (
        "get_device_client_list",
        "get_device_client_list [PID]",
        "list devices and the PIDs of clients that use them",
    ),
    (
        "ps",
        "ps [-p PID]",
        "list clients with device, server, PID namespace and command",
    ),
    (
        "set_default_active_thread_percentage",
        "set_default_active_thread_percentage PERCENTAGE",
        "share of SMs of clients of the next server",
    ),
    (
        "get_default_active_thread_percentage",
        "get_default_active_thread_percentage",
        "print the share that set_default_active_thread_percentage has set",
    ),
    (
        "set_active_thread_percentage",
        "set_active_thread_percentage PID PERCENTAGE",
        "share of SMs of a server's next clients",
    ),
    (
        "get_active_thread_percentage",
        "get_active_thread_percentage PID",
        "print the share that set_active_thread_percentage has set",
    ),
    (
        "set_default_device_pinned_mem_limit",
        "set_default_device_pinned_mem_limit DEV VALUE",
        "device memory of clients of the next server, as 10G or 512M",
    ),
    (
        "get_default_device_pinned_mem_limit",
        "get_default_device_pinned_mem_limit DEV",
        "print the limit that set_default_device_pinned_mem_limit has set",
    ),
    (
        "set_device_pinned_mem_limit",
        "set_device_pinned_mem_limit PID DEV VALUE",
        "device memory of a server's next clients",
    ),
    (
        "get_device_pinned_mem_limit",
        "get_device_pinned_mem_limit PID DEV",
        "print the limit that set_device_pinned_mem_limit has set",
    ),
    (
        "set_default_client_priority",
        "set_default_client_priority PRIORITY",
        "priority of next clients: 0 normal, 1 below normal",
    ),
    (
        "get_default_client_priority",
        "get_default_client_priority",
        "print the priority that set_default_client_priority has set",
    ),
    (
        "terminate_client",
        "terminate_client SERVER_PID CLIENT_PID",
        "end the work of a client; prints 0 when it has ended",
    ),
    (
        "quit",
        "quit [-t TIMEOUT]",
        "end the daemon and its server once the clients are gone, or after TIMEOUT seconds",
    ),
    ("help", "help", "print this"),
];

/// Returns the text of `help`.
pub(crate) fn help() -> String {
    COMMANDS
        .iter()
        .map(|(_, usage, purpose)| format!("{usage}\n    {purpose}\n"))
        .collect()
}

impl Command {
    /// Returns whether the command changes the daemon's state.
    pub(crate) fn is_change(&self) -> bool {
        matches!(
            self,
            Self::StartServer { .. }
                | Self::ShutdownServer { .. }
                | Self::SetDefaultPercentage(_)
                | Self::SetPercentage { .. }
                | Self::SetDefaultLimit { .. }
                | Self::SetLimit { .. }
                | Self::SetDefaultPriority(_)
                | Self::TerminateClient { .. }
                | Self::Quit { .. }
        )
    }

    /// Parses a line; returns `None` for an empty one.
    pub(crate) fn parse(line: &str) -> Result<Option<Self>, CommandError> {
        if line.len() > LINE_MAX {
            return Err(CommandError::TooLong);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else {
            return Ok(None);
        };
        let Some((_, usage, _)) = COMMANDS.iter().find(|(known, _, _)| known == name) else {
            return Err(CommandError::Unknown(shortened(name)));
        };
        let usage = || CommandError::Usage(usage);
        Ok(Some(match (*name, words) {
            ("get_server_list", []) => Self::ServerList,
            ("get_server_status", [server]) => Self::ServerStatus {
                server: pid(server)?,
            },
            ("start_server", [option, user, rest @ ..])
                if *option == "-uid" && matches!(rest, [] | ["-multiuser"]) =>
            {
                Self::StartServer {
                    uid: value("user id", user, user.parse().ok())?,
                    is_multiuser: !rest.is_empty(),
                }
            }
            ("shutdown_server", words) => {
                let is_forced = words.last() == Some(&"-f");
                let server = match if is_forced {
                    &words[..words.len() - 1]
                } else {
                    words
                } {
                    [] => None,
                    [server] => Some(pid(server)?),
                    _ => return Err(usage()),
                };
                Self::ShutdownServer { server, is_forced }
            }
            ("get_client_list", [server]) => Self::ClientList {
                server: pid(server)?,
            },
            ("get_device_client_list", []) => Self::DeviceClientList { server: None },
            ("get_device_client_list", [server]) => Self::DeviceClientList {
                server: Some(pid(server)?),
            },
            ("ps", []) => Self::ProcessList { server: None },
            ("ps", ["-p", server]) => Self::ProcessList {
                server: Some(pid(server)?),
            },
            ("set_default_active_thread_percentage", [share]) => {
                Self::SetDefaultPercentage(percentage(share)?)
            }
            ("get_default_active_thread_percentage", []) => Self::DefaultPercentage,
            ("set_active_thread_percentage", [server, share]) => Self::SetPercentage {
                server: pid(server)?,
                percentage: percentage(share)?,
            },
            ("get_active_thread_percentage", [server]) => Self::Percentage {
                server: pid(server)?,
            },
            ("set_default_device_pinned_mem_limit", [device, limit]) => Self::SetDefaultLimit {
                device: (*device).to_owned(),
                bytes: bytes(limit)?,
            },
            ("get_default_device_pinned_mem_limit", [device]) => Self::DefaultLimit {
                device: (*device).to_owned(),
            },
            ("set_device_pinned_mem_limit", [server, device, limit]) => Self::SetLimit {
                server: pid(server)?,
                device: (*device).to_owned(),
                bytes: bytes(limit)?,
            },
            ("get_device_pinned_mem_limit", [server, device]) => Self::Limit {
                server: pid(server)?,
                device: (*device).to_owned(),
            },
            ("set_default_client_priority", [priority]) => {
                Self::SetDefaultPriority(value("priority", priority, parse_priority(priority))?)
            }
            ("get_default_client_priority", []) => Self::DefaultPriority,
            ("terminate_client", [server, client]) => Self::TerminateClient {
                server: pid(server)?,
                client: pid(client)?,
            },
            ("quit", []) => Self::Quit { wait: None },
            ("quit", ["-t", seconds]) => {
                let wait = seconds.parse().ok().map(|seconds: u32| seconds.into());
                Self::Quit {
                    wait: Some(Duration::from_secs(value("timeout", seconds, wait)?)),
                }
            }
            ("help", []) => Self::Help,
            _ => return Err(usage()),
        }))
    }
}

/// Cuts a text that an error message quotes to 64 characters.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn value<Value>(
    what: &'static str,
    text: &str,
    value: Option<Value>,
) -> Result<Value, CommandError> {
    value.ok_or_else(|| CommandError::Value {
        what,
        text: shortened(text),
    })
}

fn pid(text: &str) -> Result<u32, CommandError> {
    value("PID", text, text.parse().ok())
}

fn percentage(text: &str) -> Result<Percentage, CommandError> {
    value(
        "active thread percentage (above 0, up to 100)",
        text,
        Percentage::parse(text),
    )
}

fn bytes(text: &str) -> Result<u64, CommandError> {
    value(
        "limit (an integer followed by G or M)",
        text,
        parse_limit(text),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_parsed() {
        let read = |line| Command::parse(line).unwrap().unwrap();
        assert_eq!(read(" get_server_list\t"), Command::ServerList);
        assert_eq!(
            read("get_server_status 7"),
            Command::ServerStatus { server: 7 }
        );
        assert_eq!(
            read("start_server -uid 1000 -multiuser"),
            Command::StartServer {
                uid: 1000,
                is_multiuser: true
            }
        );
        assert_eq!(
            read("shutdown_server 7 -f"),
            Command::ShutdownServer {
                server: Some(7),
                is_forced: true
            }
        );
        assert_eq!(
            read("shutdown_server"),
            Command::ShutdownServer {
                server: None,
                is_forced: false
            }
        );
        assert_eq!(read("ps -p 7"), Command::ProcessList { server: Some(7) });
        assert_eq!(
            read("set_device_pinned_mem_limit 7 0 10G"),
            Command::SetLimit {
                server: 7,
                device: "0".to_owned(),
                bytes: 10 << 30
            }
        );
        assert_eq!(
            read("quit -t 3"),
            Command::Quit {
                wait: Some(Duration::from_secs(3))
            }
        );
        assert_eq!(read("help"), Command::Help);
        assert_eq!(Command::parse(" \t"), Ok(None));
        for (name, _, _) in COMMANDS {
            assert!(!matches!(
                Command::parse(name),
                Err(CommandError::Unknown(_))
            ));
        }
    }

    #[test]
    fn errors_name_the_invalid_value() {
        for (line, message) in [
            ("nonsense", "Unrecognized command: nonsense"),
            ("get_client_list", "Usage: get_client_list PID"),
            ("get_client_list -1", "Invalid PID: -1"),
            ("start_server", "Usage: start_server -uid UID [-multiuser]"),
            ("start_server -uid me", "Invalid user id: me"),
            (
                "set_default_active_thread_percentage 0",
                "above 0, up to 100",
            ),
            ("set_default_device_pinned_mem_limit 0 6K", "G or M): 6K"),
            ("set_default_client_priority 2", "Invalid priority: 2"),
            ("quit now", "Usage: quit [-t TIMEOUT]"),
            ("quit -t -1", "Invalid timeout: -1"),
        ] {
            let error = Command::parse(line).unwrap_err().to_string();
            assert!(error.contains(message), "{line}: {error}");
        }
        let long = "x".repeat(LINE_MAX + 1);
        assert_eq!(Command::parse(&long), Err(CommandError::TooLong));
    }
}
