//! Weir's command line.

mod compare;
mod date;
mod demo;
mod figure_table;
mod help;
mod live;
mod manifests;
mod output;
mod proxy;
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
    /// Send a server the same load through Knative's settings and through Weir's, and say whether Weir would help it.
    Compare(Box<compare::Arguments>),
    /// What if: functions and their load on a cluster, in virtual time; and the papers' experiments.
    Simulate(Box<simulate::Arguments>),
    /// Run CUDA programs on a software GPU, and see who held what of it.
    Softgpu(softgpu::Arguments),
    /// What admission would say of manifests, without a cluster.
    Manifests(manifests::Arguments),
    /// Bring a cluster's live page to this machine: functions, slots and events as they stand.
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
        /// The process that started it.
        #[arg(long)]
        parent: i32,
        /// What it is told.
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
}

/// The number of a process, without which a program of softgpu's has no use: it ends with whoever has started it. For MPS
/// daemons, which are else to outlive an agent.
const ENDS_WITH: &str = "WEIR_ENDS_WITH";

/// Whether the process that [`ENDS_WITH`] names is there, if it is set at all.
fn has_reason() -> bool {
    let Some(named) = std::env::var_os(ENDS_WITH) else {
        return true;
    };
    // Whoever dies before this is seen by the second look.
    let is_set = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let named = named.to_str().and_then(|pid| pid.parse().ok());
    let named = named.and_then(Pid::from_raw);
    is_set && named.is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn main() -> ExitCode {
    if !has_reason() {
        return ExitCode::FAILURE;
    }
    // Where the stand-ins are installed, this program has their names as well.
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
        Command::Demo(arguments) => ended(demo::run(&arguments)),
        Command::Proxy(arguments) => ended(proxy::run(&arguments)),
        Command::Compare(arguments) => ended(compare::run(*arguments)),
        Command::Simulate(arguments) => ended(simulate::run(*arguments)),
        Command::Softgpu(arguments) => softgpu::run(&arguments),
        Command::Live(arguments) => ended(live::run(&arguments)),
        Command::Completions(arguments) => ended(help::completions(&arguments)),
        Command::Man(arguments) => ended(help::man(&arguments)),
        Command::Manifests(arguments) => manifests::run(&arguments),
        Command::Child {
            program,
            parent,
            arguments,
        } => {
            // However its parent dies, a child does not stay behind.
            if set_parent_process_death_signal(Some(Signal::KILL)).is_err()
                // It may have died before that.
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
                demo::Program::Proxy => ended(proxy::run_child(arguments)),
                demo::Program::Foreign => become_program(arguments),
                demo::Program::Load => model_server::load::main(named("load", arguments)),
            }
        }
    }
}

/// An error is the user's to mend.
fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        // Nobody to tell if this fails.
        let _written = writeln!(std::io::stderr(), "weir: {error:#}");
        if error.is::<demo::PrometheusError>() || error.is::<demo::TracesError>() {
            return ExitCode::FAILURE;
        }
        ExitCode::from(2)
    })
}

/// Replaces this process by the program that the first argument names, which ends with the parent as this process does. Returns if that
/// fails.
fn become_program(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let Some(name) = arguments.next() else {
        return ExitCode::from(2);
    };
    let error = std::process::Command::new(&name).args(arguments).exec();
    let _written = writeln!(std::io::stderr(), "weir: {}: {error}", name.display());
    ExitCode::FAILURE
}

/// A program's name before its arguments.
fn named(name: &str, arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once(OsString::from(name)).chain(arguments)
}
