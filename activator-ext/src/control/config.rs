//! Command line and environment of role `control`.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use policy::Span;
use policy::election::Terms;
use proxy::env::{Environment, Problem, Reader};
use proxy::process_log::LogConfig;

use super::names::CONTROL;
use super::webhook::pod::Delivery;

/// The arguments of role `control`.
#[derive(Debug, Args)]
pub(crate) struct ControlArguments {
    /// Labels of the pods of role `data`, in SYSTEM_NAMESPACE.
    #[arg(
        long,
        value_name = "SELECTOR",
        default_value = "app.kubernetes.io/name=weir-activator"
    )]
    data_selector: String,
    /// Duration of the Lease: 100ms or longer.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = term)]
    lease_duration: Duration,
    /// Time without a renewal of the Lease after which the leader exits.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = term)]
    renew_deadline: Duration,
    /// Time between two attempts to renew or acquire the Lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = term)]
    retry_period: Duration,
    /// Runtime class of pods with a GPU that name none, if the cluster has it; none: it is not set.
    #[arg(long, value_name = "NAME", default_value = "nvidia")]
    runtime_class: String,
    /// The nodes' GPUs are software GPUs, whose library the agent's volume delivers.
    #[arg(long)]
    software_gpu: bool,
    /// Validity of an authority of certificates, 15m to 87600h; that of pairs under it is a sixth.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = life)]
    authority_life: Duration,
    /// Namespace of the agents.
    #[arg(long, value_name = "NAME", default_value = "weir-agent")]
    agent_namespace: String,
    /// Shortest time between two writes of GpuFunctions: 100ms to 1h.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = term)]
    status_period: Duration,
}

/// Parses an authority's life: 15 minutes to ten years.
fn life(text: &str) -> Result<Duration, String> {
    let duration = annotations::values::positive_duration(text)?;
    if (Duration::from_secs(900)..=Duration::from_secs(87_600 * 3_600)).contains(&duration) {
        Ok(duration)
    } else {
        Err("allowed: 15m to 87600h".to_owned())
    }
}

/// Parses a duration from 100 ms to an hour.
fn term(text: &str) -> Result<Duration, String> {
    let duration = annotations::values::positive_duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&duration) {
        Ok(duration)
    } else {
        Err("allowed: 100ms to 1h".to_owned())
    }
}

/// The configuration of role `control`, fixed for the life of the process.
#[derive(Debug)]
pub(crate) struct ControlConfig {
    /// Weir's namespace, which contains the Lease.
    pub(crate) namespace: String,
    /// Knative's namespace, in which role `data` runs.
    pub(crate) system_namespace: String,
    /// Name of this process's pod.
    pub(crate) pod: String,
    /// Address to listen on.
    pub(crate) bind: IpAddr,
    /// Label selector of the pods of role `data`.
    pub(crate) data_selector: String,
    /// Namespace of the agents.
    pub(crate) agent_namespace: String,
    /// Shortest time between two writes of GpuFunctions.
    pub(crate) status_period: Duration,
    /// The changes that the webhook makes to pods.
    pub(crate) delivery: Delivery,
    /// The runtime class of pods with a GPU that name none.
    pub(crate) runtime_class: Option<String>,
    /// Validity of an authority of certificates.
    pub(crate) authority_life: Duration,
    /// The durations of the election.
    pub(crate) terms: Terms,
    /// Settings of the process's log.
    pub(crate) log: LogConfig,
}

impl ControlConfig {
    /// Returns the configuration by arguments and environment.
    ///
    /// # Errors
    ///
    /// Fails with a message for each invalid variable and argument.
    pub(crate) fn new(
        arguments: ControlArguments,
        environment: &impl Environment,
    ) -> Result<Self, Vec<String>> {
        let mut read = Reader::new(environment);
        let bind = crate::config::bind(&mut read);
        let log = (
            read.optional("SERVING_LOGGING_CONFIG"),
            read.optional("SERVING_LOGGING_LEVEL"),
        );
        let problems = read.into_problems();
        let mut problems: Vec<_> = problems.iter().map(Problem::to_string).collect();
        let ControlArguments {
            data_selector,
            lease_duration,
            renew_deadline,
            retry_period,
            runtime_class,
            software_gpu,
            authority_life,
            agent_namespace,
            status_period,
        } = arguments;
        if lease_duration <= renew_deadline || renew_deadline <= retry_period.saturating_mul(2) {
            problems.push(format!(
                "--lease-duration {lease_duration:?} must be longer than --renew-deadline {renew_deadline:?}, and that longer \
                 than twice --retry-period {retry_period:?}"
            ));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let some = |name| environment.get(name).filter(|value| !value.is_empty());
        let pod = some("POD_NAME").or_else(|| some("HOSTNAME"));
        let span =
            |duration: Duration| Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        Ok(Self {
            namespace: some("POD_NAMESPACE").unwrap_or_else(|| NAMESPACE.to_owned()),
            system_namespace: some("SYSTEM_NAMESPACE")
                .unwrap_or_else(|| SYSTEM_NAMESPACE.to_owned()),
            pod: pod.unwrap_or_else(|| format!("{CONTROL}-{}", std::process::id())),
            bind,
            data_selector,
            agent_namespace,
            status_period,
            delivery: Delivery {
                queue_proxy_image: some("QUEUE_PROXY_IMAGE"),
                runtime_class: None,
                software_gpu,
            },
            runtime_class: Some(runtime_class).filter(|class| class != "none"),
            authority_life,
            terms: Terms {
                lease: span(lease_duration),
                renew: span(renew_deadline),
                retry: span(retry_period),
            },
            log: LogConfig::parse(&log.0, &log.1),
        })
    }
}

/// Default of Weir's namespace, if `POD_NAMESPACE` is not set.
pub(crate) const NAMESPACE: &str = "weir-system";
/// Default of Knative's namespace, if `SYSTEM_NAMESPACE` is not set.
pub(crate) const SYSTEM_NAMESPACE: &str = "knative-serving";
