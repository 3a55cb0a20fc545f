//! Prometheus metrics, generated from the service's figures on each scrape.
//!
//! All pod metrics have the same labels, `namespace function revision variant slot gpu`, so that they can be divided by each
//! other directly; `slot` is a slot's name, `gpu` the UUID of its GPU. Counters and gauges of pods with equal labels are added
//! up, quotas included, unless `metrics.pods` gives some of them the label `pod`. Achieved share against quota and demand:
//!
//! ```promql
//! rate(weir_gpu_used_seconds_total[1m]) / weir_gpu_quota_limit_ratio # 1: the whole limit
//! rate(weir_gpu_used_seconds_total[1m]) / weir_gpu_asked_ratio # 1: the whole demand, up to the limit
//! sum by (slot, gpu) (rate(weir_gpu_used_sm_seconds_total[1m])) / weir_gpu_slot_sms
//! ```
//!
//! A range must contain two scrapes, so with a scrape interval of at most 5 s it can be the ten seconds of the guarantee.

mod moves;

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::faults::Fault;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};
use protocol::message::REFUSALS;
use rustix::time::{ClockId, clock_gettime};

use crate::node::{MpsState, Node};
use crate::pods::{Pods, RefusalReason};
use crate::state::{
    Figures, PodCounters, SLICES_OF_GPU, ServiceHandle, SlotKind, WAIT_BOUNDS_NS, protocol_refusal,
};
use crate::usage_history::{Labels, UsageHistory, add};

/// Sources of the metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) node: Arc<Node>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) usage: Arc<UsageHistory>,
    pub(crate) service: ServiceHandle,
    /// Price of a whole GPU for an hour, in millionths of the currency's unit.
    pub(crate) gpu_hour: Option<u64>,
}

/// A sample: its labels and its value.
type Sample<T> = (Vec<(&'static str, String)>, T);

fn pairs(labels: Vec<(&'static str, String)>) -> Vec<LabelPair> {
    let mut labels = labels;
    labels.sort_unstable();
    let pair = |(name, value): (&'static str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    labels.into_iter().map(pair).collect()
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Metric families of a page; those without a sample are omitted.
#[derive(Debug, Default)]
struct Page(Vec<MetricFamily>);

impl Page {
    fn push(&mut self, family: MetricFamily) {
        if !family.get_metric().is_empty() {
            self.0.push(family);
        }
    }

    fn counter(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = Sample<f64>>) {
        let metrics = samples.into_iter().map(|(labels, value)| {
            let mut counter = Counter::default();
            counter.set_value(value);
            let mut metric = Metric::from_label(pairs(labels));
            metric.set_counter(counter);
            metric
        });
        self.push(family(name, help, MetricType::COUNTER, metrics.collect()));
    }

    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = Sample<f64>>) {
        let metrics = samples.into_iter().map(|(labels, value)| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            let mut metric = Metric::from_label(pairs(labels));
            metric.set_gauge(gauge);
            metric
        });
        self.push(family(name, help, MetricType::GAUGE, metrics.collect()));
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<crate::state::Histogram>>,
    ) {
        let metrics = samples.into_iter().map(|(labels, value)| {
            let mut histogram = Histogram::default();
            let mut cumulative = 0;
            let buckets = WAIT_BOUNDS_NS
                .iter()
                .zip(value.counts)
                .map(|(bound, count)| {
                    cumulative += count;
                    let mut bucket = Bucket::default();
                    bucket.set_upper_bound(seconds(*bound));
                    bucket.set_cumulative_count(cumulative);
                    bucket
                });
            histogram.set_bucket(buckets.collect());
            histogram.set_sample_count(value.count());
            histogram.set_sample_sum(seconds(value.sum_ns));
            let mut metric = Metric::from_label(pairs(labels));
            metric.set_histogram(histogram);
            metric
        });
        self.push(family(name, help, MetricType::HISTOGRAM, metrics.collect()));
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus values are f64")]
const fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(ns: u64) -> f64 {
    number(ns) / 1e9
}

fn count(value: usize) -> f64 {
    number(u64::try_from(value).unwrap_or(u64::MAX))
}

/// Sums of the gauges of pods with equal labels.
#[derive(Debug, Default, Clone, Copy)]
struct Gauges {
    pods: u64,
    request: f64,
    limit: f64,
    sms: f64,
    asked: f64,
    debt_ns: u64,
    memory_used: u64,
    memory_limit: u64,
    processes: u64,
    parked: u64,
}

impl Gauges {
    fn add(&mut self, own: &Self) {
        self.pods += own.pods;
        self.request += own.request;
        self.limit += own.limit;
        self.sms += own.sms;
        self.asked += own.asked;
        self.debt_ns += own.debt_ns;
        self.memory_used += own.memory_used;
        self.memory_limit += own.memory_limit;
        self.processes += own.processes;
        self.parked += own.parked;
    }
}

/// Families with the label `pod` when `metrics.pods` is on.
const BY_POD: [&str; 8] = [
    "weir_gpu_used_seconds_total",
    "weir_gpu_used_sm_seconds_total",
    "weir_gpu_asked_seconds_total",
    "weir_gpu_asked_ratio",
    "weir_gpu_quota_request_ratio",
    "weir_gpu_quota_limit_ratio",
    "weir_gpu_memory_used_bytes",
    "weir_gpu_memory_limit_bytes",
];

/// Returns the sums over pods with equal labels apart from `pod`.
fn merged<T: Clone + Default>(
    by_pod: &BTreeMap<Labels, T>,
    add: impl Fn(&mut T, &T),
) -> BTreeMap<Labels, T> {
    let mut sums: BTreeMap<Labels, T> = BTreeMap::new();
    for (labels, own) in by_pod {
        add(sums.entry(labels.without_pod()).or_default(), own);
    }
    sums
}

fn label_pairs(labels: &Labels) -> Vec<(&'static str, String)> {
    vec![
        ("namespace", labels.namespace.clone()),
        ("function", labels.function.clone()),
        ("revision", labels.revision.clone()),
        ("variant", labels.variant.to_owned()),
        ("slot", labels.slot.clone()),
        ("gpu", labels.gpu.clone()),
    ]
    .into_iter()
    .chain(labels.pod.clone().map(|pod| ("pod", pod)))
    .collect()
}

impl Metrics {
    /// Returns the text of the page. Waits for new figures: not for async code.
    ///
    /// # Errors
    /// Returns the encoder's error.
    pub(crate) fn text(&self) -> Result<Vec<u8>, String> {
        let figures = self.service.refresh();
        self.usage.take(&self.node, &figures, false);
        let mut page = Page::default();
        self.pod_counters(&mut page);
        self.pod_gauges(&mut page, &figures);
        self.locations(&mut page, &figures);
        self.slots(&mut page, &figures);
        self.agent(&mut page, &figures);
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&page.0, &mut text);
        encoded.map_err(|error| error.to_string()).map(|()| text)
    }

    fn pod_counters(&self, page: &mut Page) {
        let mut by_pod = self.usage.sums();
        let sums = merged(&by_pod, |sum: &mut PodCounters, own| add(sum, own));
        if self.usage.is_by_pod() {
            // A pod's series ends with the pod. Its counts, moved to a series that continues, would appear there as a step.
            by_pod.retain(|labels, _| labels.pod.is_some());
        }
        type Get = fn(&PodCounters) -> f64;
        let counters: [(&str, &str, Get); 14] = [
            (
                "weir_gpu_used_seconds_total",
                "Wall time in which at least one kernel of a pod ran.",
                |own| seconds(own.used_wall_ns),
            ),
            (
                "weir_gpu_used_sm_seconds_total",
                "SMs occupied by kernels of pods, times time.",
                |own| seconds(own.used_sm_ns),
            ),
            (
                "weir_gpu_given_seconds_total",
                "Wall time in which pods had a token.",
                |own| seconds(own.given_ns),
            ),
            (
                "weir_gpu_asked_seconds_total",
                "Wall time in which pods wanted to compute.",
                |own| seconds(own.asked_ns),
            ),
            ("weir_gpu_token_grants_total", "Tokens granted.", |own| {
                number(own.grants)
            }),
            (
                "weir_gpu_token_overruns_total",
                "Tokens that ended with work still in flight.",
                |own| number(own.overruns),
            ),
            (
                "weir_gpu_token_overrun_seconds_total",
                "Time for which work was in flight after the end of its token.",
                |own| seconds(own.overrun_ns),
            ),
            (
                "weir_gpu_held_idle_seconds_total",
                "Time in which pods had a token and nothing in flight while others waited; charged to their quotas.",
                |own| seconds(own.held_idle_ns),
            ),
            (
                "weir_gpu_charged_seconds_total",
                "Time charged to quotas: kernel time, idle time of held tokens, and unreported work of processes which ended or did not answer.",
                |own| seconds(own.charged_ns),
            ),
            (
                "weir_gpu_launches_total",
                "Launches of kernels, graphs and cooperative kernels.",
                |own| number(own.launches),
            ),
            (
                "weir_gpu_unknown_symbols_total",
                "Functions of the driver that programs looked up and that the preload library does not know.",
                |own| number(own.unknown_symbols),
            ),
            (
                "weir_gpu_ungated_seconds_total",
                "Time for which gates were open without an agent.",
                |own| seconds(own.ungated_ns),
            ),
            (
                "weir_gpu_refused_allocations_total",
                "Allocations refused because of the memory limit.",
                |own| number(own.refused_allocations),
            ),
            (
                "weir_gpu_inflight_bound_exceeded_total",
                "Number of times that work in flight exceeded its bound.",
                |own| number(own.bound_exceeded),
            ),
        ];
        for (name, help, get) in counters {
            let source = if BY_POD.contains(&name) {
                &by_pod
            } else {
                &sums
            };
            let samples = source
                .iter()
                .map(|(labels, own)| (label_pairs(labels), get(own)));
            page.counter(name, help, samples);
        }
        let waits = sums
            .iter()
            .map(|(labels, own)| (label_pairs(labels), own.waits));
        page.histogram(
            "weir_gpu_token_wait_seconds",
            "Time from the request of a token to its grant.",
            waits,
        );
        let revoked = sums.iter().flat_map(|(labels, own)| {
            [
                ("idle", own.revoked_idle),
                ("unresponsive", own.revoked_unresponsive),
            ]
            .map(|(reason, count)| {
                let mut pairs = label_pairs(labels);
                pairs.push(("reason", reason.to_owned()));
                (pairs, number(count))
            })
        });
        page.counter(
            "weir_gpu_tokens_revoked_total",
            "Tokens revoked while others waited, because nothing was in flight or the process did not respond.",
            revoked,
        );
        let refused = sums.iter().flat_map(|(labels, own)| {
            REFUSALS.into_iter().map(protocol_refusal).map(move |name| {
                let mut pairs = label_pairs(labels);
                pairs.push(("reason", name.to_owned()));
                let count = own.refused_connections.get(name);
                (pairs, number(count.copied().unwrap_or(0)))
            })
        });
        page.counter(
            "weir_gpu_refused_connections_total",
            "Refused connections of processes.",
            refused,
        );
        let faulted = sums.iter().flat_map(|(labels, own)| {
            Fault::ALL.into_iter().map(move |fault| {
                let mut pairs = label_pairs(labels);
                pairs.push(("reason", fault.name().to_owned()));
                let count = own.faults.get(fault.name());
                (pairs, number(count.copied().unwrap_or(0)))
            })
        });
        page.counter(
            "weir_gpu_faulted_processes_total",
            "Processes under leases that were killed, since they computed no more.",
            faulted,
        );
        moves::counters(page, &sums);
    }

    fn pod_gauges(&self, page: &mut Page, figures: &Figures) {
        let mut sums: BTreeMap<Labels, Gauges> = BTreeMap::new();
        for own in &figures.pods {
            let Some(labels) = self.usage.labels(own.pod.serial) else {
                continue;
            };
            let settings = &own.pod.settings;
            let sum = sums.entry(labels).or_default();
            sum.pods += 1;
            sum.request += f64::from(settings.quota_request_ppm) / 1e6;
            sum.limit += f64::from(settings.quota_limit_ppm) / 1e6;
            sum.sms += f64::from(settings.sm_hundredths) / 1e4;
            sum.asked += self.usage.shares(own.pod.serial).asked;
            sum.debt_ns += own.debt_ns;
            sum.memory_used += own.memory_used;
            sum.memory_limit += own.memory_limit.unwrap_or(0);
            sum.processes += own.processes.len() as u64;
            let parked = own
                .processes
                .iter()
                .map(|process| u64::from(process.parked));
            sum.parked += parked.sum::<u64>();
        }
        let by_pod = sums;
        let sums = merged(&by_pod, Gauges::add);
        type Get = fn(&Gauges) -> f64;
        let gauges: [(&str, &str, Get); 9] = [
            ("weir_gpu_pods", "Pods that the agent serves.", |own| {
                number(own.pods)
            }),
            (
                "weir_gpu_quota_request_ratio",
                "Share of wall time that pods are guaranteed.",
                |own| own.request,
            ),
            (
                "weir_gpu_quota_limit_ratio",
                "Largest share of wall time that pods may use.",
                |own| own.limit,
            ),
            (
                "weir_gpu_sm_ratio",
                "Share of the slot's SMs that each process of the pods may use, added up over pods.",
                |own| own.sms,
            ),
            (
                "weir_gpu_asked_ratio",
                "Share of wall time in which pods wanted to compute in the last ten seconds, each up to its limit.",
                |own| own.asked,
            ),
            (
                "weir_gpu_debt_seconds",
                "Time that pods have used beyond their quota and not yet paid back.",
                |own| seconds(own.debt_ns),
            ),
            (
                "weir_gpu_memory_used_bytes",
                "Device memory that pods hold.",
                |own| number(own.memory_used),
            ),
            (
                "weir_gpu_processes",
                "Processes connected to the agent.",
                |own| number(own.processes),
            ),
            (
                "weir_gpu_parked_threads",
                "Threads that wait at a gate.",
                |own| number(own.parked),
            ),
        ];
        for (name, help, get) in gauges {
            let source = if BY_POD.contains(&name) {
                &by_pod
            } else {
                &sums
            };
            let samples = source
                .iter()
                .map(|(labels, own)| (label_pairs(labels), get(own)));
            page.gauge(name, help, samples);
        }
        let limited = by_pod.iter().filter(|(_, own)| own.memory_limit > 0);
        page.gauge(
            "weir_gpu_memory_limit_bytes",
            "Device memory that pods with a limit may hold.",
            limited.map(|(labels, own)| (label_pairs(labels), number(own.memory_limit))),
        );
    }

    fn slots(&self, page: &mut Page, figures: &Figures) {
        let node = self.node.snapshot();
        // Of two slots with the same name, such as a recreated MIG instance, the later one.
        let mut by_name: BTreeMap<_, _> = BTreeMap::new();
        for own in &node.slots {
            let name = (own.slot.name.clone(), own.slot.gpu_uuid().to_owned());
            let entry = by_name.entry(name).or_insert(own);
            if entry.lost.is_some() || own.lost.is_none() {
                *entry = own;
            }
        }
        let pairs = |own: &crate::node::SlotState| {
            vec![
                ("slot", own.slot.name.clone()),
                ("gpu", own.slot.gpu_uuid().to_owned()),
            ]
        };
        let all = || by_name.values().copied();
        page.gauge(
            "weir_gpu_slot_lost",
            "1: nothing can compute on the slot.",
            all().map(|own| (pairs(own), f64::from(u8::from(own.lost.is_some())))),
        );
        page.counter(
            "weir_gpu_slot_losses_total",
            "Times that the slot was lost.",
            all().map(|own| (pairs(own), number(own.losses))),
        );
        page.gauge(
            "weir_gpu_slot_sms",
            "SMs of the slot, where they are known.",
            all().filter_map(|own| Some((pairs(own), f64::from(own.slot.sms?)))),
        );
        let slices = || all().filter_map(|own| Some((own, own.slot.slices()?)));
        page.gauge(
            "weir_gpu_slot_gpcs",
            "Compute slices of the slot, of the seven into which MIG divides a GPU; 7: a whole GPU.",
            slices().map(|(own, slices)| (pairs(own), f64::from(slices))),
        );
        if let Some(gpu_hour) = self.gpu_hour {
            let of_gpu = number(gpu_hour) / 1e6 / 3_600.0;
            page.gauge(
                "weir_gpu_slot_price_per_second",
                "Price of the slot for a second, in the currency of price.gpu-hour.",
                slices().map(|(own, slices)| {
                    let share = f64::from(slices) / f64::from(SLICES_OF_GPU);
                    (pairs(own), of_gpu * share)
                }),
            );
        }
        page.gauge(
            "weir_gpu_slot_seats",
            "Seats of the slot: the largest number of pods on it.",
            all().map(|own| (pairs(own), f64::from(own.slot.seats))),
        );
        page.gauge(
            "weir_gpu_slot_memory_bytes",
            "Memory of the slot.",
            all().map(|own| (pairs(own), number(own.slot.memory_bytes))),
        );
        page.gauge(
            "weir_gpu_slot_memory_used_bytes",
            "Memory of the slot that processes hold, by NVML.",
            all().map(|own| (pairs(own), number(own.memory_used))),
        );
        let shared = || all().filter(|own| own.slot.kind == SlotKind::Mps);
        let states = shared().flat_map(|own| {
            ["starting", "up", "down", "unable"].map(|state| {
                let mut pairs = pairs(own);
                pairs.push(("state", state.to_owned()));
                (pairs, f64::from(u8::from(own.mps.name() == state)))
            })
        });
        page.gauge(
            "weir_gpu_slot_mps_state",
            "1: the slot's MPS daemon is in this state.",
            states,
        );
        let clients = shared().map(|own| {
            let clients = match &own.mps {
                MpsState::Up { clients, .. } => clients.len(),
                _ => 0,
            };
            (pairs(own), count(clients))
        });
        page.gauge(
            "weir_gpu_slot_mps_clients",
            "Clients of the slot's MPS daemon.",
            clients,
        );
        page.counter(
            "weir_gpu_slot_mps_restarts_total",
            "Restarts of the slot's MPS daemon.",
            shared().map(|own| (pairs(own), number(own.mps_restarts))),
        );
        let with_figures =
            || all().filter_map(|own| Some((pairs(own), figures.slot(own.slot.key)?)));
        page.gauge(
            "weir_gpu_slot_held_ratio",
            "Share of the slot's SMs under tokens or with unfinished work.",
            with_figures().map(|(pairs, own)| (pairs, f64::from(own.held_hundredths) / 1e4)),
        );
        page.gauge(
            "weir_gpu_slot_holding_pods",
            "Pods on the slot that have a token.",
            with_figures().map(|(pairs, own)| (pairs, f64::from(own.holders))),
        );
        page.gauge(
            "weir_gpu_slot_waiting_pods",
            "Pods on the slot that wait for a token.",
            with_figures().map(|(pairs, own)| (pairs, f64::from(own.waiters))),
        );
        page.counter(
            "weir_gpu_slot_token_grants_total",
            "Tokens granted on the slot.",
            with_figures().map(|(pairs, own)| (pairs, number(own.grants))),
        );
        page.counter(
            "weir_gpu_slot_busy_seconds_total",
            "Wall time in which at least one kernel of any pod ran on the slot.",
            with_figures().map(|(pairs, own)| (pairs, seconds(own.busy_ns))),
        );
        page.counter(
            "weir_gpu_slot_idle_while_waiting_seconds_total",
            "Time in which a pod that could have computed waited although SMs were free.",
            with_figures().map(|(pairs, own)| (pairs, seconds(own.idle_while_waiting_ns))),
        );
    }

    fn agent(&self, page: &mut Page, figures: &Figures) {
        let one = |value| [(Vec::new(), value)];
        let agent = figures.agent;
        let is_answering = {
            let node = self.node.lock();
            node.driver.is_some() && node.nvml_problem.is_none()
        };
        page.gauge(
            "weir_build_info",
            "Always 1; the label is the version of the build.",
            [(vec![("version", crate::COMMIT.to_owned())], 1.0)],
        );
        page.gauge(
            "weir_gpu_agent_nvml_up",
            "1: NVML answers.",
            one(f64::from(u8::from(is_answering))),
        );
        page.counter(
            "weir_gpu_agent_token_grants_total",
            "Tokens granted on the node.",
            one(number(agent.grants)),
        );
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_s = u64::try_from(time.tv_sec).unwrap_or(0);
        let cpu_ns = u64::try_from(time.tv_nsec).unwrap_or(0);
        page.counter(
            "weir_gpu_agent_cpu_seconds_total",
            "CPU time of the agent.",
            one(number(cpu_s) + seconds(cpu_ns)),
        );
        page.counter(
            "weir_gpu_agent_service_cpu_seconds_total",
            "CPU time of the agent's token service.",
            one(seconds(agent.service_cpu_ns)),
        );
        page.counter(
            "weir_gpu_agent_service_wakeups_total",
            "Wake-ups of the token service.",
            one(number(agent.wakeups)),
        );
        page.counter(
            "weir_gpu_agent_malformed_messages_total",
            "Malformed messages of processes.",
            one(number(agent.malformed_messages)),
        );
        let refusals = self.pods.lock().refusals;
        let refused = RefusalReason::ALL.iter().zip(refusals);
        page.counter(
            "weir_gpu_pods_refused_total",
            "Pods, and changes of pods, that were refused.",
            refused.map(|(why, count)| (vec![("reason", why.name().to_owned())], number(count))),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::state::{SlotFigures, SlotKey, service_channel};
    use crate::testing::{figures_of, pod, slot};

    fn page(figures: Figures) -> String {
        page_of(figures, UsageHistory::default())
    }

    fn page_of(figures: Figures, usage: UsageHistory) -> String {
        let (service, inbox) = service_channel().unwrap();
        let node = Arc::new(Node::default());
        let added = node.lock().add(0, |key| slot(key.0));
        assert!(added.is_some());
        let metrics = Metrics {
            node,
            pods: Arc::default(),
            usage: Arc::new(usage),
            service,
            gpu_hour: Some(3_600_000_000),
        };
        inbox.publish(figures);
        String::from_utf8(metrics.text().unwrap()).unwrap()
    }

    fn two_of_a_revision() -> Figures {
        let (one, other) = (pod(0, "resnet"), pod(1, "resnet"));
        let mut figures = figures_of(1, &[&one, &other]);
        for own in &mut figures.pods {
            own.counters.used_wall_ns = 1_500_000_000;
            own.counters.waits.observe(200_000);
            own.counters.refused_connections.insert("no-mps", 2);
            own.counters.faults.insert("no-progress", 1);
            own.memory_used = 1 << 30;
        }
        figures.slots.push(SlotFigures {
            slot: SlotKey(0),
            is_lost: false,
            held_hundredths: 5_000,
            holders: 1,
            waiters: 1,
            grants: 9,
            idle_while_waiting_ns: 0,
            busy_ns: 2_000_000_000,
            processes: 2,
            context_residue: None,
        });
        figures
    }

    const LABELS: &str = "{function=\"resnet\",gpu=\"GPU-00000000-0000-0000-0000-000000000000\",\
                          namespace=\"default\",revision=\"resnet\",slot=\"0\",variant=\"monolith\"}";

    #[test]
    fn samples_of_pods_with_equal_labels_are_added_up() {
        let page = page(two_of_a_revision());
        for (name, value) in [
            ("weir_gpu_used_seconds_total", "3"),
            ("weir_gpu_quota_request_ratio", "0.6"),
            ("weir_gpu_quota_limit_ratio", "1.6"),
            ("weir_gpu_sm_ratio", "0.5"),
            ("weir_gpu_memory_used_bytes", "2147483648"),
            ("weir_gpu_memory_limit_bytes", "17179869184"),
            ("weir_gpu_pods", "2"),
            ("weir_gpu_token_wait_seconds_count", "2"),
            ("weir_gpu_token_wait_seconds_sum", "0.0004"),
        ] {
            let line = format!("{name}{LABELS} {value}");
            assert!(page.lines().any(|own| own == line), "{line}\n{page}");
        }
        let bucket = LABELS.replace("}", ",le=\"0.00025\"}");
        assert!(
            page.contains(&format!("weir_gpu_token_wait_seconds_bucket{bucket} 2")),
            "{page}"
        );
        let slot = "{gpu=\"GPU-00000000-0000-0000-0000-000000000000\",slot=\"0\"}";
        assert!(
            page.contains(&format!("weir_gpu_slot_held_ratio{slot} 0.5")),
            "{page}"
        );
        assert!(
            page.contains("reason=\"no-mps\",revision=\"resnet\""),
            "{page}"
        );
        let faulted = LABELS.replace("revision", "reason=\"no-progress\",revision");
        let line = format!("weir_gpu_faulted_processes_total{faulted} 2");
        assert!(page.lines().any(|own| own == line), "{line}\n{page}");
    }

    #[test]
    fn metrics_used_in_ratios_have_the_same_labels() {
        let page = page(two_of_a_revision());
        for name in [
            "weir_gpu_used_seconds_total",
            "weir_gpu_given_seconds_total",
            "weir_gpu_asked_seconds_total",
            "weir_gpu_quota_limit_ratio",
            "weir_gpu_quota_request_ratio",
            "weir_gpu_asked_ratio",
            "weir_gpu_memory_used_bytes",
            "weir_gpu_memory_limit_bytes",
        ] {
            let series = format!("{name}{LABELS} ");
            assert!(
                page.lines().any(|line| line.starts_with(&series)),
                "{name}\n{page}"
            );
        }
    }

    #[test]
    fn names_and_labels_follow_the_conventions() {
        let allowed: BTreeSet<_> = [
            "namespace",
            "function",
            "revision",
            "variant",
            "slot",
            "gpu",
            "state",
            "reason",
            "outcome",
            "source",
            "version",
            "le",
        ]
        .into();
        let page = page(two_of_a_revision());
        let mut kinds = BTreeMap::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                kinds.insert(name.to_owned(), kind.to_owned());
                assert!(name.starts_with("weir_"), "{name}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            if let Some((_, labels)) = line.split_once('{') {
                let (labels, _) = labels.rsplit_once('}').unwrap();
                for label in labels.split("\",") {
                    let (name, _) = label.split_once('=').unwrap();
                    assert!(allowed.contains(name), "{line}");
                }
            }
        }
        assert!(kinds.len() > 30, "{}", kinds.len());
    }

    #[test]
    fn with_pods_attributed_metrics_have_one_series_per_pod_and_others_one() {
        let page = page_of(two_of_a_revision(), UsageHistory::new(true));
        let lines = |name: &str| {
            let series = format!("{name}{{");
            page.lines()
                .filter(|line| line.starts_with(&series))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for name in BY_POD {
            let lines = lines(name);
            assert_eq!(lines.len(), 2, "{name}\n{page}");
            assert!(lines[0].contains("pod=\"resnet-0\""), "{}", lines[0]);
        }
        for name in ["weir_gpu_pods", "weir_gpu_launches_total"] {
            let lines = lines(name);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(!lines[0].contains("pod="), "{}", lines[0]);
        }
    }

    #[test]
    fn the_price_of_a_slot_is_proportional_to_its_compute_slices() {
        let page = page(two_of_a_revision());
        let slot = "{gpu=\"GPU-00000000-0000-0000-0000-000000000000\",slot=\"0\"}";
        for line in [
            format!("weir_gpu_slot_gpcs{slot} 7"),
            format!("weir_gpu_slot_price_per_second{slot} 1"),
        ] {
            assert!(page.lines().any(|own| own == line), "{line}\n{page}");
        }
    }

    #[test]
    fn a_node_without_pods_has_a_page() {
        let page = page(Figures::none());
        assert!(page.contains("weir_gpu_agent_nvml_up 0"), "{page}");
        assert!(!page.contains("weir_gpu_pods{"), "{page}");
    }
}
