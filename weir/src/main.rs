//! Weir's command line.
//!
//! Each subcommand is a module of its own; `usage` words errors of the command line, `terminal` and `output` write results. The programs
//! that a demo runs are children of this same binary (`weir child …`), so that what runs is what was built. Deliberately
//! absent: decisions and their arithmetic, which are in libraries (`policy`, `simulator`, `experiments`). Start reading in `demo`.

mod compare;
mod date;
mod demo;
mod figure_table;
mod help;
mod live;
mod manifests;
mod output;
mod proxy;
mod replay;
mod runtime;
mod simulate;
mod softgpu;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, test_kill_process};

/// Serve GPU functions on Knative within their latency objectives.
#[derive(Debug, Parser)]
#[command(name = "weir", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay a real trace against stock and Weir settings and compare.
    Demo(Box<demo::Arguments>),
    /// Put Weir's queue-proxy in front of any HTTP server, without Knative.
    Proxy(proxy::Arguments),
    /// Send a server the same load through Knative's settings and through Weir's, and report whether Weir would help it.
    Compare(Box<compare::Arguments>),
    /// Run the events which a node's agent has recorded again, and compare what it does.
    Replay(replay::Arguments),
    /// Simulate functions and their load on a cluster in virtual time, and the papers' experiments.
    Simulate(Box<simulate::Arguments>),
    /// Run CUDA programs on a software GPU, and show their use of SMs, links and memory.
    Softgpu(softgpu::Arguments),
    /// Check manifests as admission would, without a cluster.
    Manifests(manifests::Arguments),
    /// Serve a cluster's live page on this machine: its functions, slots and events.
    Live(Box<live::Arguments>),
    /// Print completions for a shell.
    Completions(help::CompletionsArguments),
    /// Print the manual page, or write those of all commands.
    Man(help::ManArguments),
    /// Run one of the demo's programs; settings come from the environment, as in a pod.
    #[command(hide = true)]
    Child {
        #[arg(value_enum)]
        program: demo::Program,
        /// PID of the parent process.
        #[arg(long)]
        parent: i32,
        /// Arguments of the program.
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
}

/// Environment variable with the PID of a process with which this one ends. Set for MPS daemons of the software GPU, which
/// otherwise outlive their agent.
const ENDS_WITH: &str = "WEIR_ENDS_WITH";

/// Returns whether the process named by [`ENDS_WITH`] exists; true if the variable is not set.
fn is_owner_alive() -> bool {
    let Some(named) = std::env::var_os(ENDS_WITH) else {
        return true;
    };
    // A process that exits before the signal is set is found by the check below.
    let is_set = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let named = named.to_str().and_then(|pid| pid.parse().ok());
    let named = named.and_then(Pid::from_raw);
    is_set && named.is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn main() -> ExitCode {
    if !is_owner_alive() {
        return ExitCode::FAILURE;
    }
    // Stand-ins are links to this program under other names.
    let mut given = std::env::args_os();
    if let Some(name) = given.next()
        && let Some(code) = ::softgpu::run_as(&name, given)
    {
        return code;
    }
    let arguments: Arguments = match usage::parsed() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command {
        Command::Demo(arguments) => exit_code(demo::run(&arguments)),
        Command::Proxy(arguments) => exit_code(proxy::run(&arguments)),
        Command::Compare(arguments) => exit_code(compare::run(*arguments)),
        Command::Replay(arguments) => exit_code(replay::run(&arguments)),
        Command::Simulate(arguments) => exit_code(simulate::run(*arguments)),
        Command::Softgpu(arguments) => softgpu::run(&arguments),
        Command::Live(arguments) => exit_code(live::run(&arguments)),
        Command::Completions(arguments) => exit_code(help::completions(&arguments)),
        Command::Man(arguments) => exit_code(help::man(&arguments)),
        Command::Manifests(arguments) => manifests::run(&arguments),
        Command::Child {
            program,
            parent,
            arguments,
        } => {
            // A child must not outlive its parent.
            if set_parent_process_death_signal(Some(Signal::KILL)).is_err()
                // The parent may have exited before the signal was set.
                || getppid().map(Pid::as_raw_pid) != Some(parent)
            {
                return ExitCode::FAILURE;
            }
            match program {
                demo::Program::QueueProxy => queue_proxy::main(),
                demo::Program::ModelServer => model_server::main(),
                demo::Program::SoftgpuServer => demo::serve_software_gpu(),
                demo::Program::ActivatorExt => activator_ext::main_with_arguments(arguments),
                demo::Program::GpuSidecar => {
                    gpu_sidecar::main_with(named("gpu-sidecar", arguments))
                }
                demo::Program::Proxy => exit_code(proxy::run_child(arguments)),
                demo::Program::Foreign => become_program(arguments),
                demo::Program::Load => model_server::load::main(named("load", arguments)),
            }
        }
    }
}

/// Returns the exit code of an outcome; reports an error on stderr.
fn exit_code(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        // A failed write to stderr cannot be reported.
        let _written = writeln!(std::io::stderr(), "weir: {error:#}");
        if error.is::<demo::PrometheusError>() || error.is::<demo::TracesError>() {
            return ExitCode::FAILURE;
        }
        ExitCode::from(2)
    })
}

/// Replaces this process by the program named by the first argument, which ends with the parent as this process does. Returns
/// only on failure.
fn become_program(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let Some(name) = arguments.next() else {
        return ExitCode::from(2);
    };
    let error = std::process::Command::new(&name).args(arguments).exec();
    let _written = writeln!(std::io::stderr(), "weir: {}: {error}", name.display());
    ExitCode::FAILURE
}

/// Returns a program's name followed by its arguments.
fn named(name: &str, arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once(OsString::from(name)).chain(arguments)
}
