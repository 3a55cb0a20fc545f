//! The command line: `gpu-sidecar run`, `mps`, `check`, `list`, `evict` and `restore`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent_core::{DRAIN_MS, DRAIN_MS_MAX};
use clap::{Parser, Subcommand};
use serde_json::json;

use crate::config::{Config, ConfigError, PATH_DEFAULT};
use crate::csi::helper;
use crate::instances::{self, InstanceRequest};
use crate::node::NodeState;
use crate::nvml::real::Library;
use crate::nvml::watch::survey_once;
use crate::run::{RunError, RunOptions, run};
use crate::{log, mps};

/// Environment variable which, as `true`, has the effect of `run --external-mps`.
const EXTERNAL_MPS: &str = "WEIR_EXTERNAL_MPS";
/// Exit code for an invalid command line or configuration.
const USAGE: u8 = 2;

/// The node agent: shares the node's GPUs among pods.
#[derive(Debug, Parser)]
#[command(name = "gpu-sidecar", version)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Runs the agent until it receives SIGTERM or SIGINT
    Run {
        /// Configuration file [default: /etc/weir/agent.toml; built-in defaults where that does not exist]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Stops the MPS daemons with the agent, which destroys the GPU contexts of all pods
        #[arg(long)]
        stop_mps: bool,
        /// Leaves the MPS daemons to `gpu-sidecar mps`: they are watched, but neither started nor stopped.
        /// WEIR_EXTERNAL_MPS=true has the same effect
        #[arg(long, conflicts_with = "stop_mps")]
        external_mps: bool,
        /// Appends every event of the token service and the actions that follow to this file, for `weir replay`. It grows by some
        /// kilobytes for each second in which pods compute, and has no bound
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Keeps the MPS daemons of this node's slots running, apart from the agent, until it receives SIGTERM or SIGINT. The
    /// daemons stop with it, which destroys the GPU contexts of all pods on those slots
    Mps {
        /// The agent's configuration file [default: /etc/weir/agent.toml; built-in defaults where that does not exist]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Lists the pods of a running agent, with the places of their models
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Moves the model of a pod from its device to the host, and waits for the end
    Evict {
        /// Name of the pod, as `gpu-sidecar list` shows it
        #[arg(value_name = "ID", value_parser = pod_name)]
        id: String,
        /// Time for which work in flight is waited for, in milliseconds: 0 to 600000
        #[arg(long, value_name = "MS", default_value_t = DRAIN_MS, value_parser = clap::value_parser!(u32).range(..=i64::from(DRAIN_MS_MAX)))]
        drain_ms: u32,
        #[command(flatten)]
        target: Target,
    },
    /// Moves the model of a pod back to its device, and waits for the end
    Restore {
        /// Name of the pod, as `gpu-sidecar list` shows it
        #[arg(value_name = "ID", value_parser = pod_name)]
        id: String,
        #[command(flatten)]
        target: Target,
    },
    /// Mounts volumes on behalf of the agent, which starts it
    #[command(hide = true)]
    Mounts {
        /// Process with the mount namespace to enter
        #[arg(long, value_name = "PID")]
        process: Option<u32>,
    },
    /// Checks a configuration file: prints the effective configuration and the slots of this node, or each problem with its
    /// line
    Check {
        /// Configuration file to check
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Prints the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Returns the name of a pod's folder, or what is allowed in it.
fn pod_name(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err("allowed: letters, digits, '-', '_' and '.'".to_owned())
    }
}

/// The agent that is asked.
#[derive(Debug, clap::Args)]
struct Target {
    /// Address of its control API
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9470")]
    address: SocketAddr,
    /// Prints the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command line and returns the exit code. The first argument is the program's name.
pub(crate) fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _unread = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    match arguments.command {
        Action::Run {
            config,
            stop_mps,
            external_mps,
            record,
        } => start(config.as_deref(), |config| {
            let options = RunOptions {
                stop_mps,
                external_mps: external_mps || is_external_mps_set(),
                record,
            };
            run(config, options)
        }),
        Action::Mps { config } => start(config.as_deref(), mps::program::run),
        Action::List { target } => ask(&target, &InstanceRequest::List),
        Action::Evict {
            id,
            drain_ms,
            target,
        } => {
            let request = InstanceRequest::Move {
                id,
                verb: "evict",
                drain_ms,
            };
            ask(&target, &request)
        }
        Action::Restore { id, target } => {
            let request = InstanceRequest::Move {
                id,
                verb: "restore",
                drain_ms: DRAIN_MS,
            };
            ask(&target, &request)
        }
        Action::Mounts { process } => helper::run(process),
        Action::Check { file, json } => check(&file, json),
    }
}

/// Asks a running agent and prints its answer. What the agent refuses goes to standard error, with exit code 1.
fn ask(target: &Target, request: &InstanceRequest) -> ExitCode {
    match instances::ask(target.address, request, target.json) {
        Ok(outcome) if outcome.is_done || target.json => {
            print(&outcome.text);
            if outcome.is_done {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Ok(outcome) => {
            print_error(outcome.text.trim_end());
            ExitCode::FAILURE
        }
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the environment leaves the MPS daemons to another program. Manifests use a variable, since older agents
/// ignore it, and would reject an argument.
fn is_external_mps_set() -> bool {
    std::env::var(EXTERNAL_MPS).is_ok_and(|value| value == "true")
}

/// Reads the configuration, installs the log and runs `program`; returns [`USAGE`] when the configuration is invalid.
fn start(path: Option<&Path>, program: impl FnOnce(Config) -> Result<(), RunError>) -> ExitCode {
    let config = match path {
        Some(path) => Config::read(path),
        None if Path::new(PATH_DEFAULT).exists() => Config::read(Path::new(PATH_DEFAULT)),
        None => Ok(Config::default()),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            print_error(&error.to_string());
            return ExitCode::from(USAGE);
        }
    };
    log::begin(config.node.log);
    match program(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the result of `gpu-sidecar check`. Returns [`USAGE`] when the configuration is invalid.
fn check(path: &Path, is_json: bool) -> ExitCode {
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(error) => {
            if is_json {
                print(&format!("{}\n", problems(path, &error)));
            } else {
                print_error(&error.to_string());
            }
            return ExitCode::from(USAGE);
        }
    };
    // A missing library may appear before the agent runs: it does not make the configuration invalid.
    let found =
        Library::open(&config.node.nvml_library).and_then(|library| survey_once(&config, &library));
    let mps_control = mps::find_program(&config.node.mps_control);
    let text = if is_json {
        let slots = found
            .as_ref()
            .map(|node| node.slots.iter().map(|own| &*own.slot).collect::<Vec<_>>());
        let body = json!({
            "valid": true,
            "config": config,
            "nvml": {
                "driver": found.as_ref().ok().and_then(|node| node.driver.as_ref()),
                "slots": slots.as_ref().ok(),
                "problem": found.as_ref().err(),
            },
            "mps_control": {
                "path": mps_control.as_ref().ok(),
                "problem": mps_control.as_ref().err(),
            },
        });
        format!("{body}\n")
    } else {
        match effective(&config, &found, &mps_control) {
            Ok(text) => text,
            Err(error) => {
                print_error(&error.to_string());
                return ExitCode::FAILURE;
            }
        }
    };
    print(&text);
    ExitCode::SUCCESS
}

/// Returns the problems of a configuration file in the form of `check --json`.
fn problems(path: &Path, error: &ConfigError) -> serde_json::Value {
    let file = path.display().to_string();
    let problems = match error {
        ConfigError::Unreadable { why, .. } => {
            vec![json!({"file": file, "line": null, "key": "", "text": why})]
        }
        ConfigError::Invalid { problems, .. } => problems
            .iter()
            .map(|own| json!({"file": file, "line": own.line, "key": own.key, "text": own.text}))
            .collect(),
    };
    json!({"valid": false, "problems": problems})
}

/// Returns the effective configuration in the form of a configuration file, with the state of the node as comments.
fn effective(
    config: &Config,
    found: &Result<NodeState, String>,
    mps_control: &Result<PathBuf, String>,
) -> Result<String, toml::ser::Error> {
    let mut text = String::new();
    if config.tokens.time_scale > 1 {
        let scale = config.tokens.time_scale;
        let _infallible = writeln!(
            text,
            "# Durations of [tokens] are multiplied by time-scale already: {scale}."
        );
    }
    text.push_str(&toml::to_string_pretty(config)?);
    text.push('\n');
    match found {
        Ok(node) => {
            let driver = node
                .driver
                .as_ref()
                .map_or("?", |driver| driver.version.as_str());
            let _infallible = writeln!(
                text,
                "# NVML answers; driver {driver}; slots: {}",
                node.slots.len()
            );
            for own in &node.slots {
                let slot = &own.slot;
                let sms = slot.sms.map_or_else(
                    || "unknown number of SMs".to_owned(),
                    |sms| format!("{sms} SMs"),
                );
                let _infallible = writeln!(
                    text,
                    "# {}: {} ({}), {}, {sms}, {} MiB, {} seats",
                    slot.name,
                    slot.uuid,
                    slot.product,
                    slot.kind.name(),
                    slot.memory_bytes >> 20,
                    slot.seats
                );
            }
        }
        Err(why) => {
            let _infallible = writeln!(text, "# NVML does not answer: {why}");
        }
    }
    let _infallible = match mps_control {
        Ok(path) => writeln!(text, "# MPS control program: {}", path.display()),
        Err(why) => writeln!(text, "# {why}"),
    };
    Ok(text)
}

fn print(text: &str) {
    // A closed standard output is no error.
    let _unread = std::io::stdout().write_all(text.as_bytes());
}

fn print_error(text: &str) {
    let _unread = writeln!(std::io::stderr(), "{text}");
}
