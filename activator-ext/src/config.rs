//! The command line and environment of the process.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use policy::routing::Rule;
use proxy::env::{Environment, Problem, Reader};
use proxy::observability::Observability;
use proxy::process_log::LogConfig;
use proxy::tls::CERTIFICATES_DEFAULT;

/// Default of the largest number of requests that wait for one function.
const WAITING_DEFAULT: usize = 10_000;
/// Largest value of `--waiting`.
const WAITING_MAX: usize = 1_000_000;

/// Default directory of mounted trust bundles.
const TRUST_BUNDLES_DEFAULT: &str = "/var/lib/knative/trust-bundles";

/// One deadline queue per function in front of all its instances, for Knative.
#[derive(Debug, Parser)]
#[command(name = "activator-ext", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) role: Role,
}

/// The role of the process.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Takes requests where Knative's activator does, and carries each to an instance.
    Data(DataArguments),
    /// Puts role `data` into the path of opted-in revisions, and removes it from there.
    #[cfg(feature = "kubernetes")]
    Control(crate::control::ControlArguments),
    /// Removes activator-ext from the path of revisions, until `detach --undo`.
    #[cfg(feature = "kubernetes")]
    Detach(crate::control::DetachArguments),
    /// Checks a cluster before and after Weir's installation: what is missing, what is wrong, and how to repair it.
    #[cfg(feature = "kubernetes")]
    Check(crate::control::CheckArguments),
}

/// The arguments of role `data`.
#[derive(Debug, Args)]
pub(crate) struct DataArguments {
    /// A directory of manifests (Revision and EndpointSlice; YAML or JSON) instead of the Kubernetes API.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// Largest number of requests that wait for one function.
    #[arg(long, value_name = "N", default_value_t = WAITING_DEFAULT, value_parser = waiting)]
    pub(crate) waiting: usize,
    /// HOST:PORT of Knative's own activator, which serves requests that this program cannot [default: activator-service
    /// of SYSTEM_NAMESPACE, port 80; with --manifests none].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) pass_to: Option<String>,
    /// URL of the autoscaler's WebSocket [default: that of SYSTEM_NAMESPACE, port 8080; with --manifests none].
    #[arg(long, value_name = "URL", value_parser = websocket)]
    pub(crate) autoscaler: Option<String>,
    /// How an instance is chosen; rules other than late-binding are for comparison.
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

/// The source of views.
#[derive(Debug)]
pub(crate) enum Source {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// Objects of the Kubernetes API.
    #[cfg(feature = "kubernetes")]
    Kubernetes,
}

impl Source {
    #[cfg(feature = "kubernetes")]
    fn new(manifests: Option<PathBuf>) -> Result<Self, String> {
        Ok(manifests.map_or(Self::Kubernetes, Self::Manifests))
    }

    #[cfg(not(feature = "kubernetes"))]
    fn new(manifests: Option<PathBuf>) -> Result<Self, String> {
        let missing = "--manifests DIR is required: this build does not support the Kubernetes API";
        manifests
            .map(Self::Manifests)
            .ok_or_else(|| missing.to_owned())
    }

    const fn is_cluster(&self) -> bool {
        !matches!(self, Self::Manifests(_))
    }
}

/// The configuration of role `data`, fixed for the life of the process.
#[derive(Debug)]
pub(crate) struct Config {
    /// The source of views.
    pub(crate) source: Source,
    /// Namespace of Knative Serving.
    #[cfg_attr(
        not(feature = "kubernetes"),
        expect(dead_code, reason = "read by that source")
    )]
    pub(crate) namespace: String,
    /// Largest number of requests that wait for one function.
    pub(crate) waiting: usize,
    /// The rule by which an instance is chosen.
    pub(crate) rule: Rule,
    /// HOST:PORT of Knative's own activator, for requests that this process cannot decide on.
    pub(crate) pass_to: Option<String>,
    /// The URL of the autoscaler's WebSocket; `None`: reports are not sent.
    pub(crate) autoscaler: Option<String>,
    /// Directory of the serving certificate and of the authority of the pods' certificates.
    pub(crate) certificates: PathBuf,
    /// Directory of further authorities.
    pub(crate) trust_bundles: PathBuf,
    /// Time without a request after SIGTERM until no more connections are accepted.
    pub(crate) quiet: std::time::Duration,
    /// The address to listen on.
    pub(crate) bind: IpAddr,
    /// The address on which functions are described: loopback, unless `identity` is set.
    pub(crate) bind_functions: IpAddr,
    /// Directory with certificate, key and authorities for the connections between Weir's own programs, if it is set.
    #[cfg_attr(
        not(feature = "kubernetes"),
        expect(dead_code, reason = "read with that source")
    )]
    pub(crate) identity: Option<PathBuf>,
    /// Whether all requests are passed to Knative's own activator.
    pub(crate) is_disabled: bool,
    /// The pod's name, which distinguishes its reports from those of other processes.
    pub(crate) pod: String,
    /// The settings of Knative's metrics, spans and logs.
    pub(crate) observability: Observability,
    /// The settings of the process's log.
    pub(crate) log: LogConfig,
}

/// Parses the command line; the error is the help text or a usage error.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Role, clap::Error> {
    let name = std::iter::once(OsString::from("activator-ext"));
    Arguments::try_parse_from(name.chain(arguments)).map(|arguments| arguments.role)
}

/// Returns the address to listen on, that of `WEIR_BIND`, by default all addresses.
pub(crate) fn bind(read: &mut Reader<'_, impl Environment>) -> IpAddr {
    let all = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match read.optional("WEIR_BIND") {
        unset if unset.is_empty() => all,
        value => value.parse().unwrap_or_else(|_| {
            read.invalid(
                "WEIR_BIND",
                value,
                "allowed: an IP address such as 127.0.0.7",
            );
            all
        }),
    }
}

impl Config {
    /// Returns the configuration by arguments and environment.
    ///
    /// # Errors
    ///
    /// Fails with a message for each invalid variable and for each missing value.
    pub(crate) fn new(
        arguments: DataArguments,
        environment: &impl Environment,
    ) -> Result<Self, Vec<String>> {
        let mut read = Reader::new(environment);
        let bind = bind(&mut read);
        let folder = |name: &'static str, default: &str| {
            let set = environment.get(name).filter(|value| !value.is_empty());
            PathBuf::from(set.unwrap_or_else(|| default.to_owned()))
        };
        let certificates = folder("WEIR_CERTIFICATES", CERTIFICATES_DEFAULT);
        let trust_bundles = folder("WEIR_TRUST_BUNDLES", TRUST_BUNDLES_DEFAULT);
        let is_disabled = read.optional_bool("WEIR_DISABLED");
        let log = (
            read.optional("SERVING_LOGGING_CONFIG"),
            read.optional("SERVING_LOGGING_LEVEL"),
        );
        let observability = read.optional("OBSERVABILITY_CONFIG");
        let observability = Observability::parse(&observability).unwrap_or_else(|why| {
            read.invalid("OBSERVABILITY_CONFIG", observability, why);
            Observability::default()
        });
        let some = |name| environment.get(name).filter(|value| !value.is_empty());
        let pod = some("POD_NAME").or_else(|| some("HOSTNAME"));
        let problems = read.into_problems();
        let mut problems: Vec<_> = problems.iter().map(Problem::to_string).collect();
        let source = match Source::new(arguments.manifests) {
            Ok(source) if problems.is_empty() => source,
            unusable => {
                problems.extend(unusable.err());
                return Err(problems);
            }
        };
        // In a cluster the addresses of Knative's own programs are well known.
        let namespace = some("SYSTEM_NAMESPACE").unwrap_or_else(|| "knative-serving".to_owned());
        let knative = |service: &str| format!("{service}.{namespace}.svc.{}", cluster_domain());
        let knatives = |service| source.is_cluster().then(|| knative(service));
        let pass_to = arguments
            .pass_to
            .or_else(|| Some(format!("{}:80", knatives("activator-service")?)));
        let autoscaler = arguments
            .autoscaler
            .or_else(|| Some(format!("ws://{}:8080/", knatives("autoscaler")?)));
        let identity = some("WEIR_IDENTITY").map(PathBuf::from);
        Ok(Self {
            namespace: namespace.clone(),
            source,
            waiting: arguments.waiting,
            rule: arguments.rule,
            pass_to,
            autoscaler,
            certificates,
            trust_bundles,
            quiet: std::time::Duration::from_secs(arguments.quiet),
            bind,
            bind_functions: if bind.is_loopback() || identity.is_some() {
                bind
            } else {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            },
            identity,
            is_disabled,
            pod: pod.unwrap_or_else(|| "activator-ext".to_owned()),
            observability,
            log: LogConfig::parse(&log.0, &log.1),
        })
    }
}

/// Returns the domain of the cluster's Services by the resolver's search list, as Knative does.
fn cluster_domain() -> String {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    searched_domain(&text).unwrap_or("cluster.local").to_owned()
}

fn searched_domain(text: &str) -> Option<&str> {
    let lines = text.lines().map(str::split_whitespace);
    let searches = lines.filter_map(|mut words| (words.next() == Some("search")).then_some(words));
    let domain = searches
        .flatten()
        .find_map(|word| word.strip_prefix("svc."));
    domain.map(|domain| domain.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_domain_is_what_the_resolver_searches() {
        let text = "nameserver 10.96.0.10\nsearch default.svc.corp.example svc.corp.example. corp.example\n";
        assert_eq!(searched_domain(text), Some("corp.example"));
        assert_eq!(searched_domain("search example.com\n"), None);
    }
}
