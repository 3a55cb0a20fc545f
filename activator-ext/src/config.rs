//! Command line and environment, resolved.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use policy::routing::Rule;
use proxy::env::{Environment, Problem, Reader};
use proxy::process_log::LogConfig;

/// Requests that wait for one function, at most, unless said otherwise.
const WAITING_DEFAULT: usize = 10_000;
/// … and this is the most that may be said.
const WAITING_MAX: usize = 1_000_000;

/// One deadline queue per function in front of all its instances, for Knative.
#[derive(Debug, Parser)]
#[command(name = "activator-ext", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) role: Role,
}

/// What the process does.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Takes requests where Knative's activator does, and carries each to an instance.
    Data(DataArguments),
}

/// The arguments of role `data`.
#[derive(Debug, Args)]
pub(crate) struct DataArguments {
    /// A directory of manifests (Revision, PodAutoscaler, EndpointSlice, Pod; YAML or JSON) instead of the Kubernetes API.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// Requests that wait for one function, at most.
    #[arg(long, value_name = "N", default_value_t = WAITING_DEFAULT, value_parser = waiting)]
    pub(crate) waiting: usize,
    /// Knative's own activator, for what this program cannot decide on [default: activator-service of SYSTEM_NAMESPACE,
    /// port 80; with --manifests none].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) pass_to: Option<String>,
    /// The autoscaler's WebSocket [default: that of SYSTEM_NAMESPACE, port 8080; with --manifests none].
    #[arg(long, value_name = "URL", value_parser = websocket)]
    pub(crate) autoscaler: Option<String>,
    /// How an instance is chosen; anything but late-binding is for comparison.
    #[arg(long, value_name = "RULE", default_value = Rule::LateBinding.name(), value_parser = rule)]
    pub(crate) rule: Rule,
    /// After SIGTERM, seconds without a request until no more connections are accepted.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=600))]
    pub(crate) quiet: u64,
}

fn waiting(text: &str) -> Result<usize, String> {
    annotations::values::integer(text, 1, WAITING_MAX)
}

fn rule(text: &str) -> Result<Rule, String> {
    let named = Rule::ALL.into_iter().find(|rule| rule.name() == text);
    named.ok_or_else(|| format!("allowed: {}", Rule::ALL.map(Rule::name).join(", ")))
}

fn websocket(text: &str) -> Result<String, String> {
    let is_plain = text.starts_with("ws://") && text.parse::<http::Uri>().is_ok();
    if is_plain {
        Ok(text.to_owned())
    } else {
        Err("a URL ws://HOST:PORT/ is needed".to_owned())
    }
}

/// Everything that is fixed for the life of role `data`.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where views come from.
    pub(crate) manifests: PathBuf,
    /// Requests that wait for one function, at most.
    pub(crate) waiting: usize,
    /// How an instance is chosen.
    pub(crate) rule: Rule,
    /// Knative's own activator.
    pub(crate) pass_to: Option<String>,
    /// The autoscaler's WebSocket.
    pub(crate) autoscaler: Option<String>,
    /// After SIGTERM, so long without a request ends the service.
    pub(crate) quiet: std::time::Duration,
    /// The address to listen on.
    pub(crate) bind: IpAddr,
    /// The address on which functions are described.
    pub(crate) bind_functions: IpAddr,
    /// All goes to Knative's own activator.
    pub(crate) is_disabled: bool,
    /// The pod's name, which distinguishes its reports from other processes'.
    pub(crate) pod: String,
    /// How the process's log is written.
    pub(crate) log: LogConfig,
}

/// Parses the command line; an error prints help, or what is wrong with it.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<DataArguments, clap::Error> {
    let name = std::iter::once(OsString::from("activator-ext"));
    let Arguments {
        role: Role::Data(data),
    } = Arguments::try_parse_from(name.chain(arguments))?;
    Ok(data)
}

impl Config {
    /// Joins arguments and environment.
    ///
    /// # Errors
    /// Every variable that cannot be used, and what is missing.
    pub(crate) fn new(
        arguments: DataArguments,
        environment: &impl Environment,
    ) -> Result<Self, Vec<String>> {
        let mut read = Reader::new(environment);
        let bind = match read.optional("WEIR_BIND") {
            unset if unset.is_empty() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            value => value.parse().unwrap_or_else(|_| {
                read.invalid("WEIR_BIND", value, "an IP address is needed, as 127.0.0.7");
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            }),
        };
        let is_disabled = read.optional_bool("WEIR_DISABLED");
        let log = (
            read.optional("SERVING_LOGGING_CONFIG"),
            read.optional("SERVING_LOGGING_LEVEL"),
        );
        let some = |name| environment.get(name).filter(|value| !value.is_empty());
        let pod = some("POD_NAME").or_else(|| some("HOSTNAME"));
        let problems = read.into_problems();
        let mut problems: Vec<_> = problems.iter().map(Problem::to_string).collect();
        let manifests = arguments.manifests.unwrap_or_else(|| {
            let missing = "--manifests DIR is needed: the Kubernetes API is not read yet";
            problems.push(missing.to_owned());
            PathBuf::new()
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            manifests,
            waiting: arguments.waiting,
            rule: arguments.rule,
            pass_to: arguments.pass_to,
            autoscaler: arguments.autoscaler,
            quiet: std::time::Duration::from_secs(arguments.quiet),
            bind,
            bind_functions: if bind.is_loopback() {
                bind
            } else {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            },
            is_disabled,
            pod: pod.unwrap_or_else(|| "activator-ext".to_owned()),
            log: LogConfig::parse(&log.0, &log.1),
        })
    }
}
