//! Starts the demo's child processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use clap::ValueEnum as _;
use peers::network::Network;
use tokio::process::{Child, Command};

use super::Program;

/// Starts a program of this same binary, so that what runs is what was built.
pub(crate) fn spawn(
    program: Program,
    environment: impl IntoIterator<Item = (&'static str, String)>,
) -> anyhow::Result<Child> {
    Spawn::new(program).environment(environment).spawn()
}

/// Builder of a child process.
#[derive(Debug)]
pub(crate) struct Spawn {
    program: Executable,
    /// Command which enters its network namespace; empty without one.
    entrance: Vec<String>,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
}

/// Executable of a child.
#[derive(Debug)]
enum Executable {
    Own(Program),
    Foreign(PathBuf),
}

impl Spawn {
    /// Creates a child of this binary without stdin and stdout; its stderr is inherited.
    pub(crate) fn new(program: Program) -> Self {
        Self::of(Executable::Own(program))
    }

    /// Creates a child of another executable without stdin, stdout and stderr.
    pub(crate) fn foreign(path: &Path) -> Self {
        let spawn = Self::of(Executable::Foreign(path.to_owned()));
        spawn.stderr(Stdio::null())
    }

    fn of(program: Executable) -> Self {
        Self {
            program,
            entrance: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::inherit(),
        }
    }

    /// Makes the child run in a network namespace.
    pub(crate) fn within(mut self, network: &Network) -> Self {
        self.entrance = network.entrance().map(str::to_owned).into();
        self
    }

    pub(crate) fn arguments(mut self, arguments: impl IntoIterator<Item = OsString>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn environment(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, String)>,
    ) -> Self {
        let each = variables.into_iter();
        self.environment
            .extend(each.map(|(name, value)| (name.into(), value)));
        self
    }

    pub(crate) fn stdin(mut self, stdin: Stdio) -> Self {
        self.stdin = stdin;
        self
    }

    pub(crate) fn stdout(mut self, stdout: Stdio) -> Self {
        self.stdout = stdout;
        self
    }

    pub(crate) fn stderr(mut self, stderr: Stdio) -> Self {
        self.stderr = stderr;
        self
    }

    /// Starts the child. It is killed when the handle is dropped or this thread ends, as by the end of the process. Must be
    /// called by a thread which outlives the child.
    pub(crate) fn spawn(self) -> anyhow::Result<Child> {
        let (path, name, role) = match &self.program {
            Executable::Own(program) => {
                let own = std::env::current_exe().context("cannot find the running program")?;
                let name = program
                    .to_possible_value()
                    .context("every program has a name")?;
                let name = name.get_name().to_owned();
                let parent = std::process::id().to_string();
                let role = ["child", &name, "--parent", &parent, "--"].map(str::to_owned);
                (own, name, role.to_vec())
            }
            Executable::Foreign(path) => (path.clone(), path.display().to_string(), Vec::new()),
        };
        let mut command = match &self.entrance[..] {
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(path);
                command
            }
            [] => Command::new(path),
        };
        command
            .args(role)
            .args(self.arguments)
            .env_clear()
            .envs(self.environment)
            .stdin(self.stdin)
            .stdout(self.stdout)
            .stderr(self.stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))
    }
}
