//! The command line: `gpu-sidecar run`, `gpu-sidecar mps` and `gpu-sidecar check`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use crate::config::{Config, ConfigError, PATH_DEFAULT};
use crate::csi::helper;
use crate::node::NodeState;
use crate::nvml::real::Library;
use crate::nvml::watch::look;
use crate::run::{RunError, RunOptions, run};
use crate::{log, mps};

/// As `true`: `run --external-mps`.
const EXTERNAL_MPS: &str = "WEIR_EXTERNAL_MPS";
/// The exit code for a command line or a configuration that cannot be used.
const USAGE: u8 = 2;

/// The agent of a node: shares its GPUs among pods.
#[derive(Debug, Parser)]
#[command(name = "gpu-sidecar", version)]
struct Arguments {
    #[command(subcommand)]
    command: Do,
}

#[derive(Debug, Subcommand)]
enum Do {
    /// Runs the agent until it gets SIGTERM or SIGINT.
    Run {
        /// The configuration; without it /etc/weir/agent.toml, or all defaults where that does not exist.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Ends the MPS daemons with the agent, and so the GPU contexts of all pods.
        #[arg(long)]
        stop_mps: bool,
        /// Leaves MPS daemons to `gpu-sidecar mps`: they are watched, and neither started nor ended. WEIR_EXTERNAL_MPS=true says
        /// the same.
        #[arg(long, conflicts_with = "stop_mps")]
        external_mps: bool,
    },
    /// Keeps the MPS daemons of this node's slots running, apart from the agent, until it gets SIGTERM or SIGINT. They end with
    /// it, and so do the GPU contexts of all pods on those slots.
    Mps {
        /// The agent's configuration; without it /etc/weir/agent.toml, or all defaults where that does not exist.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Mounts for the agent, which starts it.
    #[command(hide = true)]
    Mounts {
        /// In the mount namespace of this process.
        #[arg(long, value_name = "PID")]
        process: Option<u32>,
    },
    /// Checks a configuration: prints what holds and what is found on this node, or each problem with its line.
    Check {
        /// The configuration.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Does what the command line says. The first argument is the program's name.
pub(crate) fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _unread = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    match arguments.command {
        Do::Run {
            config,
            stop_mps,
            external_mps,
        } => start(config.as_deref(), |config| {
            let options = RunOptions {
                stop_mps,
                external_mps: external_mps || says_external_mps(),
            };
            run(config, options)
        }),
        Do::Mps { config } => start(config.as_deref(), mps::program::run),
        Do::Mounts { process } => helper::run(process),
        Do::Check { file, json } => check(&file, json),
    }
}

/// Whether the environment leaves MPS daemons to another program: manifests say so by a variable, since an agent that does not
/// know it yet takes no notice, and would refuse an argument.
fn says_external_mps() -> bool {
    std::env::var(EXTERNAL_MPS).is_ok_and(|value| value == "true")
}

fn start(path: Option<&Path>, program: impl FnOnce(Config) -> Result<(), RunError>) -> ExitCode {
    let config = match path {
        Some(path) => Config::read(path),
        None if Path::new(PATH_DEFAULT).exists() => Config::read(Path::new(PATH_DEFAULT)),
        None => Ok(Config::default()),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            say_error(&error.to_string());
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

fn check(path: &Path, is_json: bool) -> ExitCode {
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(error) => {
            if is_json {
                say(&format!("{}\n", problems(path, &error)));
            } else {
                say_error(&error.to_string());
            }
            return ExitCode::from(USAGE);
        }
    };
    // What is not there now may be there when the agent runs: it makes no configuration wrong.
    let found =
        Library::open(&config.node.nvml_library).and_then(|library| look(&config, &library));
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
        match holds(&config, &found, &mps_control) {
            Ok(text) => text,
            Err(error) => {
                say_error(&error.to_string());
                return ExitCode::FAILURE;
            }
        }
    };
    say(&text);
    ExitCode::SUCCESS
}

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

/// What holds, as a configuration file would say it, with what is found as comments.
fn holds(
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
                let sms = slot
                    .sms
                    .map_or_else(|| "SMs not known".to_owned(), |sms| format!("{sms} SMs"));
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

fn say(text: &str) {
    // Who does not read it has not asked for it.
    let _unread = std::io::stdout().write_all(text.as_bytes());
}

fn say_error(text: &str) {
    let _unread = writeln!(std::io::stderr(), "{text}");
}
