//! Execution of the front ends' commands.

use std::fmt::Write as _;
use std::io::Read as _;
use std::time::{Duration, Instant};

use softgpu_wire::message::{Kind, Message, ProcessLine};

use super::child::{Question, Server};
use super::peer::PeerId;
use super::{Daemon, Quit, Waiter};
use crate::command::{self, Command, CommandError};

/// Largest number of bytes read from a client's command line.
const COMMAND_LINE_MAX: u64 = 256;
/// Characters of a UUID that `ps` prints: the kind of device and the first three groups.
const PARTIAL_UUID: usize = 22;

/// Result of a command.
enum Outcome {
    /// The complete answer, sent at once.
    Text(String),
    /// The answer follows later.
    Later,
}

fn not_found(server: u32) -> Outcome {
    Outcome::Text(format!("Server {server} not found\n"))
}

impl Daemon {
    /// Executes a command line of a front end.
    pub(super) fn execute(&mut self, requester: PeerId, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        self.log.control(&format!("Cmd:{line}"));
        let outcome = match Command::parse(line) {
            Ok(None) => Outcome::Text(String::new()),
            Ok(Some(command)) if command.is_change() && !self.may_change(requester) => {
                Outcome::Text("Operation not permitted\n".to_owned())
            }
            Ok(Some(command)) => self.run_command(requester, command),
            Err(error) => Outcome::Text(match error {
                CommandError::Unknown(_) => format!("{error}; \"help\" lists the commands\n"),
                error => format!("{error}\n"),
            }),
        };
        match outcome {
            Outcome::Text(text) => self.answer(requester, &text),
            Outcome::Later => self.defer_answer(requester),
        }
    }

    fn run_command(&mut self, requester: PeerId, command: Command) -> Outcome {
        match command {
            Command::Help => Outcome::Text(command::help()),
            Command::ServerList => {
                let servers = self.servers.iter().filter(|server| !server.is_stopping());
                Outcome::Text(lines(servers.map(|server| server.pid)))
            }
            Command::ServerStatus { server } => match self.server(server) {
                Some(server) => Outcome::Text(format!("{}\n", server.state)),
                None => not_found(server),
            },
            Command::ClientList { server } => match self.server(server) {
                Some(server) => Outcome::Text(lines(server.client_pids())),
                None => not_found(server),
            },
            Command::StartServer { uid, is_multiuser } => {
                if self.quitting.is_some() {
                    return Outcome::Text("The daemon is shutting down\n".to_owned());
                }
                self.waiters.push_back(Waiter::Starter {
                    peer: requester,
                    uid,
                    is_multiuser: is_multiuser || self.is_multiuser,
                });
                Outcome::Later
            }
            Command::ShutdownServer { server, is_forced } => self.shut(server, is_forced),
            Command::DeviceClientList { server } => {
                self.ask_for_lines(requester, server, Question::DeviceClientList)
            }
            Command::ProcessList { server } => {
                self.ask_for_lines(requester, server, Question::ProcessList)
            }
            Command::TerminateClient { server, client } => {
                let Some(found) = self.server(server) else {
                    return not_found(server);
                };
                if !found.client_pids().contains(&client) {
                    return Outcome::Text(format!("Client {client} not found\n"));
                }
                let message = Message::new(Kind::MpsTerminate, &[client.into()]);
                ask(found, &message, Question::Terminate { client }, requester)
            }
            Command::Quit { wait } => {
                self.quit(requester, wait);
                Outcome::Later
            }
            setting => self.set_or_get(setting),
        }
    }

    fn set_or_get(&mut self, command: Command) -> Outcome {
        let nothing = || Outcome::Text(String::new());
        match command {
            Command::SetDefaultPercentage(percentage) => {
                self.defaults.percentage = Some(percentage);
                Outcome::Text(format!("{percentage}\n"))
            }
            Command::DefaultPercentage => {
                Outcome::Text(format!("{}\n", self.defaults.percentage()))
            }
            Command::SetPercentage { server, percentage } => match self.server(server) {
                Some(server) => {
                    server.settings.percentage = Some(percentage);
                    Outcome::Text(format!("{percentage}\n"))
                }
                None => not_found(server),
            },
            Command::Percentage { server } => match self.server(server) {
                Some(server) => Outcome::Text(format!("{}\n", server.settings.percentage())),
                None => not_found(server),
            },
            Command::SetDefaultLimit { device, bytes } => match self.devices.find(&device) {
                Some(unit) => {
                    self.defaults.set_limit(unit, bytes);
                    nothing()
                }
                None => no_device(&device),
            },
            Command::DefaultLimit { device } => match self.devices.find(&device) {
                Some(unit) => limit(self.defaults.limit(unit)),
                None => no_device(&device),
            },
            Command::SetLimit {
                server,
                device,
                bytes,
            } => match (self.devices.find(&device), self.server(server)) {
                (Some(unit), Some(server)) => {
                    server.settings.set_limit(unit, bytes);
                    nothing()
                }
                (_, None) => not_found(server),
                (None, Some(_)) => no_device(&device),
            },
            Command::Limit { server, device } => {
                match (self.devices.find(&device), self.server(server)) {
                    (Some(unit), Some(server)) => limit(server.settings.limit(unit)),
                    (_, None) => not_found(server),
                    (None, Some(_)) => no_device(&device),
                }
            }
            Command::SetDefaultPriority(priority) => {
                self.defaults.priority = priority;
                nothing()
            }
            Command::DefaultPriority => Outcome::Text(format!("{}\n", self.defaults.priority)),
            _ => nothing(),
        }
    }

    fn shut(&mut self, pid: Option<u32>, is_forced: bool) -> Outcome {
        let pid = pid.or_else(|| self.current().map(|server| server.pid));
        let Some(pid) = pid else {
            return Outcome::Text("No server is running\n".to_owned());
        };
        let Some(server) = self.server(pid) else {
            return not_found(pid);
        };
        server.is_shut = true;
        if is_forced {
            self.stop(pid);
        }
        Outcome::Text(String::new())
    }

    fn quit(&mut self, requester: PeerId, wait: Option<Duration>) {
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        let quit = self.quitting.get_or_insert_with(|| Quit {
            until,
            requesters: Vec::new(),
        });
        quit.until = [quit.until, until].into_iter().flatten().min();
        quit.requesters.push(requester);
    }

    /// Requests the process list of the given server, or of the current one.
    fn ask_for_lines(
        &mut self,
        requester: PeerId,
        pid: Option<u32>,
        question: Question,
    ) -> Outcome {
        let found = match pid {
            Some(pid) => self.server(pid),
            None => self.current(),
        };
        match (found, pid) {
            (Some(server), _) => ask(
                server,
                &Message::new(Kind::MpsClients, &[]),
                question,
                requester,
            ),
            (None, Some(pid)) => not_found(pid),
            (None, None) if question == Question::ProcessList => Outcome::Text(ps_head()),
            (None, None) => Outcome::Text(String::new()),
        }
    }

    /// Formats a server's answer for the front end.
    pub(super) fn format_answer(
        &self,
        server: &Server,
        question: Question,
        answer: &Message,
    ) -> String {
        if let Question::Terminate { .. } = question {
            // 0, as documented, or the error.
            return format!("{}\n", answer.error);
        }
        if answer.error != 0 {
            return format!("Server {} returned error {}\n", server.pid, answer.error);
        }
        let lines = ProcessLine::decode_all(&answer.bytes);
        if question == Question::DeviceClientList {
            let mut text = String::new();
            for line in &lines {
                let uuid = self.devices.uuid(line.unit).unwrap_or("-");
                let _written = writeln!(text, "{uuid} {}", line.pid);
            }
            return text;
        }
        let mut text = ps_head();
        for client in server.clients.values() {
            let namespace = namespace(client.pid);
            let command = command_line(client.pid);
            let mut write = |device: &str| {
                let _written = writeln!(
                    text,
                    "{:<9} {:<4} {:<9} {:<22} {namespace:<10} {command}",
                    client.pid, client.id, server.pid, device
                );
            };
            let mut here = lines
                .iter()
                .filter(|line| line.pid == client.pid)
                .peekable();
            if here.peek().is_none() {
                write("-");
            }
            for line in here {
                let uuid = self.devices.uuid(line.unit).unwrap_or("-");
                write(uuid.get(..PARTIAL_UUID).unwrap_or(uuid));
            }
        }
        text
    }
}

fn ask(server: &mut Server, message: &Message, question: Question, requester: PeerId) -> Outcome {
    if server.ask(message, question, requester) {
        Outcome::Later
    } else {
        Outcome::Text(format!("Server {} does not answer\n", server.pid))
    }
}

fn limit(bytes: u64) -> Outcome {
    Outcome::Text(format!("{}\n", crate::settings::limit_text(bytes)))
}

fn no_device(device: &str) -> Outcome {
    let device: String = device.chars().take(64).collect();
    Outcome::Text(format!("Device {device} not found\n"))
}

fn lines(pids: impl IntoIterator<Item = u32>) -> String {
    pids.into_iter().map(|pid| format!("{pid}\n")).collect()
}

fn ps_head() -> String {
    format!(
        "{:<9} {:<4} {:<9} {:<22} {:<10} COMMAND\n",
        "PID", "ID", "SERVER", "DEVICE", "NAMESPACE"
    )
}

/// Returns the number of a process's PID namespace, or `-`.
fn namespace(pid: u32) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap_or_default();
    let link = link.to_string_lossy();
    let number = link
        .strip_prefix("pid:[")
        .and_then(|link| link.strip_suffix(']'));
    number.unwrap_or("-").to_owned()
}

/// Returns the start of a process's command line with control characters as spaces, or `-`.
fn command_line(pid: u32) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(format!("/proc/{pid}/cmdline"))
        .and_then(|file| file.take(COMMAND_LINE_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let text: String = text
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    let text = text.trim();
    if read.is_err() || text.is_empty() {
        return "-".to_owned();
    }
    text.to_owned()
}
