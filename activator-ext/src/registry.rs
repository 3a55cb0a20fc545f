//! The served revisions, their functions and instances, kept equal to the last view.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use annotations::MidStreamTimeout;
use arc_swap::ArcSwap;
use policy::Span;
use policy::class;
use policy::routing::{MARGIN_PERCENT, Places, Rule, Settings, Shape};
use proxy::buffered::Buffered;
use proxy::client_tls::{ClientTls, TrustStore};
use proxy::clock::Clock;
use proxy::deadline::Deadlines;
use proxy::exchange::{Observer, Recorder};
use proxy::settings;
use proxy::timeouts::TimeLimits;
use proxy::upstream::{self, Upstream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::function::Function;
use crate::instance::Instance;
use crate::metrics::{FunctionFigures, Metrics, RevisionMetrics};
use crate::stat::RevisionStat;
use crate::telemetry::{Instruments, RevisionFigures};
use crate::view::{FunctionName, Revision, RevisionName, View};
use crate::watch::InstanceWatch;

/// Port on which a pod's queue-proxy serves TLS, fixed by Knative.
const TLS_PORT: u16 = 8112;
/// The name of an instance in error messages.
pub(crate) const PEER: &str = "the pod";
/// Smallest bound of requests that wait for a function.
const WAITING_MIN: usize = 100;
/// Largest number of idle connections kept to an instance with unlimited concurrency.
const IDLE_UNLIMITED: usize = 100;
/// Number of dial attempts. An instance that does not accept a connection within 170 ms is given up, since there are
/// others.
const DIAL_ATTEMPTS: u32 = 3;
/// Estimate of the hand-over time until the first measurement.
const HAND_OVER: Span = Span(300_000);

/// A revision that is served by this process.
#[derive(Debug)]
pub(crate) struct LiveRevision {
    /// The revision, without its pods.
    pub(crate) revision: Revision,
    /// Function of which the revision is a variant.
    pub(crate) function: Arc<Function>,
    /// Rules for the deadlines of the revision's requests.
    pub(crate) deadlines: Deadlines,
    /// Time limits of the revision's requests.
    pub(crate) limits: TimeLimits,
    /// The way in which a response that has started ends at a timeout.
    pub(crate) mid_stream_timeout: MidStreamTimeout,
    /// Counts for the reports to the autoscaler.
    pub(crate) stat: Arc<RevisionStat>,
    /// The counters exported as metrics.
    pub(crate) metrics: Arc<RevisionMetrics>,
    /// Observer of the revision's requests.
    pub(crate) observer: Arc<Observer>,
}

/// The result of a look-up of a revision.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The revision is served by this process.
    Served(Arc<LiveRevision>),
    /// The revision has no annotation of Weir.
    NotOptedIn,
    /// The revision is not in the view.
    Unknown,
}

/// The served revisions, their functions and instances.
#[derive(Debug)]
pub(crate) struct Registry {
    clock: Clock,
    buffered: Arc<Buffered>,
    waiting_max: usize,
    rule: Rule,
    metrics: Arc<Metrics>,
    /// Instruments which observe requests.
    instruments: Instruments,
    /// Authorities of the pods' certificates; `None`: requests go to pods without TLS.
    tls: Option<Arc<TrustStore>>,
    revisions: ArcSwap<Revisions>,
    is_complete: AtomicBool,
    parts: Mutex<Parts>,
}

/// Revisions by namespace and name, so that a look-up by two texts allocates nothing; `None`: not opted in.
type Revisions = HashMap<String, HashMap<String, Option<Arc<LiveRevision>>>>;

/// The running tasks.
#[derive(Debug, Default)]
struct Parts {
    functions: BTreeMap<FunctionName, FunctionTask>,
    pods: BTreeMap<(RevisionName, SocketAddr), PodTask>,
}

/// A function and the task of its timer.
#[derive(Debug)]
struct FunctionTask {
    function: Arc<Function>,
    timer: JoinHandle<()>,
}

impl Drop for FunctionTask {
    fn drop(&mut self) {
        self.timer.abort();
        self.function.close();
    }
}

/// A watched pod, which no longer serves once this is dropped.
#[derive(Debug)]
struct PodTask {
    revision: Arc<LiveRevision>,
    instance: Arc<Instance>,
    ready: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for PodTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Registry {
    /// Returns a registry that serves nothing yet. At most `waiting_max` requests wait for one function, and `rule`
    /// chooses among its instances.
    #[must_use]
    pub(crate) fn new(
        clock: Clock,
        buffered: Arc<Buffered>,
        waiting_max: usize,
        rule: Rule,
        metrics: Arc<Metrics>,
        instruments: Instruments,
        tls: Option<Arc<TrustStore>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            buffered,
            waiting_max,
            rule,
            metrics,
            instruments,
            tls,
            revisions: ArcSwap::default(),
            is_complete: AtomicBool::new(false),
            parts: Mutex::default(),
        })
    }

    /// Returns whether a complete view has been applied.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Returns the served revision of this name, or why there is none.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Lookup {
        let revisions = self.revisions.load();
        match revisions.get(namespace).and_then(|own| own.get(name)) {
            Some(Some(served)) => Lookup::Served(Arc::clone(served)),
            Some(None) => Lookup::NotOptedIn,
            None => Lookup::Unknown,
        }
    }

    /// Returns whether the revision's function has other revisions.
    pub(crate) fn has_other_variants(&self, revision: &LiveRevision) -> bool {
        let revisions = self.revisions.load();
        let own = revisions.get(&revision.revision.name.namespace);
        let own = own.into_iter().flat_map(HashMap::values).flatten();
        let is_variant = |it: &&Arc<LiveRevision>| Arc::ptr_eq(&it.function, &revision.function);
        own.filter(is_variant).count() > 1
    }

    /// Returns all served revisions.
    pub(crate) fn served(&self) -> Vec<Arc<LiveRevision>> {
        let revisions = self.revisions.load();
        let all = revisions.values().flat_map(HashMap::values);
        all.flatten().map(Arc::clone).collect()
    }

    /// Makes the served revisions equal to the view. Must be called on the runtime, from one task at a time.
    pub(crate) fn apply(&self, view: &View) {
        let old = self.revisions.load_full();
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut revisions = Revisions::new();
        let mut functions = BTreeMap::new();
        let opted_in = view.revisions.values().filter(|it| it.settings.opted_in());
        // Of several revisions the last by name defines the settings: the newest, since Knative numbers them.
        let fixed: BTreeMap<_, _> = opted_in
            .map(|it| (it.function(), self.settings(it)))
            .collect();
        for (RevisionName { namespace, name }, revision) in &view.revisions {
            let of_namespace = revisions.entry(namespace.clone()).or_default();
            if !revision.settings.opted_in() {
                of_namespace.insert(name.clone(), None);
                continue;
            }
            let before = known(&old, namespace, name);
            let settings = &fixed[&revision.function()];
            let function =
                self.function_of(revision, settings, &mut parts.functions, &mut functions);
            let served = match before {
                Some(before)
                    if before.is_as(revision) && Arc::ptr_eq(&before.function, &function) =>
                {
                    Arc::clone(before)
                }
                _ => self.serve(revision, function, before),
            };
            of_namespace.insert(name.clone(), Some(served));
        }
        for served in old.values().flat_map(HashMap::values).flatten() {
            let RevisionName { namespace, name } = &served.revision.name;
            if known(&revisions, namespace, name).is_none() {
                self.metrics.forget(&served.revision);
            }
        }
        let mut pods = BTreeMap::new();
        for revision in view.revisions.values() {
            let RevisionName { namespace, name } = &revision.name;
            let Some(served) = known(&revisions, namespace, name) else {
                continue;
            };
            for (ordinal, (&address, pod)) in (0..).zip(&revision.pods) {
                let key = (revision.name.clone(), address);
                let is_ready = pod.is_ready || !revision.needs_readiness;
                // A pod whose revision has changed is watched anew, since its concurrency may have changed.
                let known = parts.pods.remove(&key);
                let task = match known.filter(|task| Arc::ptr_eq(&task.revision, served)) {
                    Some(task) => {
                        task.ready.send_replace(is_ready);
                        Some(task)
                    }
                    None => self.watch(served, address, ordinal, is_ready),
                };
                if let Some(task) = task {
                    pods.insert(key, task);
                }
            }
        }
        // The remaining tasks are those of deleted pods.
        parts.pods = pods;
        let gone = std::mem::replace(&mut parts.functions, functions);
        drop(parts);
        self.revisions.store(Arc::new(revisions));
        // Dropped only now, when their requests can find the replacements.
        drop(gone);
        self.is_complete.store(true, Ordering::Release);
    }

    /// Returns the function of a revision: the running one if it has these settings, or a new one.
    fn function_of(
        &self,
        revision: &Revision,
        settings: &Settings,
        running: &mut BTreeMap<FunctionName, FunctionTask>,
        functions: &mut BTreeMap<FunctionName, FunctionTask>,
    ) -> Arc<Function> {
        let name = revision.function();
        if let Some(known) = functions.get(&name) {
            return Arc::clone(&known.function);
        }
        let same = running
            .get(&name)
            .is_some_and(|known| known.function.settings == *settings);
        let known = if same { running.remove(&name) } else { None };
        let running = known.unwrap_or_else(|| {
            let before = running.get(&name).map(|known| known.function.take_counts());
            let counts = before.unwrap_or_default();
            let function = Function::new(name.clone(), *settings, self.clock, counts);
            let timer = tokio::spawn(Arc::clone(&function).run());
            FunctionTask { function, timer }
        });
        let function = Arc::clone(&running.function);
        functions.insert(name, running);
        function
    }

    fn settings(&self, revision: &Revision) -> Settings {
        let settings = &revision.settings;
        Settings {
            rule: self.rule,
            order: settings::order(settings),
            late: settings::late(settings),
            // Knative's activator refuses no request before its own bound, however few pods there are yet.
            depth: settings.queue_depth.unwrap_or(self.waiting_max),
            waiting_min: WAITING_MIN,
            waiting_max: self.waiting_max,
            margin_percent: MARGIN_PERCENT,
            hand_over: HAND_OVER,
            // Until the first sample no request is considered late before its deadline.
            execution: Span::ZERO,
            classes: class::COUNT,
            slo: settings.slo.map(Span::from),
        }
    }

    fn serve(
        &self,
        revision: &Revision,
        function: Arc<Function>,
        before: Option<&Arc<LiveRevision>>,
    ) -> Arc<LiveRevision> {
        // The counts of requests in flight continue.
        let stat = before.filter(|it| it.revision.concurrency() == revision.concurrency());
        let stat = stat.map(|before| Arc::clone(&before.stat));
        let settings = &revision.settings;
        for problem in &settings.problems {
            tracing::warn!(revision = %revision.name, problem, "invalid annotation ignored");
        }
        let trust = settings::trust(settings);
        let metrics = self.metrics.revision(revision);
        Arc::new(LiveRevision {
            function,
            deadlines: Deadlines::new(settings.slo, trust, revision.timeout),
            limits: revision.time_limits(),
            mid_stream_timeout: settings.mid_stream_timeout,
            stat: stat.unwrap_or_else(|| RevisionStat::new(revision.concurrency(), Instant::now())),
            observer: self
                .instruments
                .observer(revision, Arc::clone(&metrics) as Arc<dyn Recorder>),
            metrics,
            revision: Revision {
                pods: BTreeMap::new(),
                ..revision.clone()
            },
        })
    }

    fn watch(
        &self,
        served: &Arc<LiveRevision>,
        address: SocketAddr,
        ordinal: u32,
        is_ready: bool,
    ) -> Option<PodTask> {
        let tls = match &self.tls {
            Some(trust) => Some(client_tls(trust, &served.revision.name)?),
            None => None,
        };
        let port = if tls.is_some() {
            TLS_PORT
        } else {
            address.port()
        };
        let concurrency = served.revision.concurrency();
        let upstream = Upstream::new(
            upstream::Settings {
                address: SocketAddr::new(address.ip(), port),
                peer: PEER,
                // One connection more than the pod has places, since a request is bound to it before a place is free.
                idle_max: concurrency.map_or(IDLE_UNLIMITED, |places| places as usize + 1),
                dial_attempts: DIAL_ATTEMPTS,
                dial_max: None,
                // A request of which a byte was written is not sent again.
                resends: false,
                tls,
            },
            Arc::clone(&self.buffered),
        );
        let instance = Instance::new(address, served.revision.name.clone(), upstream);
        let (sender, ready) = watch::channel(is_ready);
        let watched = InstanceWatch {
            instance: Arc::clone(&instance),
            function: Arc::clone(&served.function),
            shape: Shape {
                stages: match served.revision.settings.variant {
                    annotations::Variant::Monolith => 1,
                    annotations::Variant::Pipeline => 2,
                },
                ..Shape::monolith(
                    concurrency.map_or(Places::Unlimited, Places::Fixed),
                    ordinal,
                )
            },
            ready,
            clock: self.clock,
        };
        Some(PodTask {
            revision: Arc::clone(served),
            instance,
            ready: sender,
            task: tokio::spawn(watched.run()),
        })
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        for pod in parts.pods.values() {
            pod.instance.upstream.sweep();
        }
    }

    /// Calls `visit` with the current number of requests of every revision.
    pub(crate) fn requests(&self, visit: &mut dyn FnMut(RevisionFigures<'_>)) {
        let mut active: HashMap<RevisionName, u64> = HashMap::new();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        for ((name, _), pod) in &parts.pods {
            *active.entry(name.clone()).or_default() += u64::from(pod.instance.requests());
        }
        drop(parts);
        for served in self.served() {
            let revision = &served.revision;
            visit(RevisionFigures {
                revision,
                carried: u64::from(served.stat.carried()),
                active: active.get(&revision.name).copied().unwrap_or(0),
            });
        }
    }

    /// Calls `visit` with the figures of every function, and counts its pods that have not answered yet.
    pub(crate) fn figures(&self, visit: &mut dyn FnMut(FunctionFigures<'_>)) {
        let served = self.served();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pods_of: HashMap<&RevisionName, usize> = HashMap::new();
        for (name, _) in parts.pods.keys() {
            *pods_of.entry(name).or_default() += 1;
        }
        let of_functions = by_function(&served);
        for running in parts.functions.values() {
            let function = &running.function;
            let own = of_functions.get(&Arc::as_ptr(function));
            let Some((own, first)) = own.and_then(|own| Some((own, own.first()?))) else {
                continue;
            };
            let pods = own.iter().filter_map(|it| pods_of.get(&it.revision.name));
            let pods: usize = pods.sum();
            let status = function.status();
            let counts = function.take_counts();
            let ready = status.instances.len().saturating_sub(status.ejected);
            visit(FunctionFigures {
                labels: [&function.name.namespace, first.revision.label()],
                waiting: status.waiting,
                instances: [
                    ready,
                    status.ejected,
                    pods.saturating_sub(status.instances.len()),
                ],
                decisions: counts.decisions,
                ejections: counts.ejections,
            });
        }
    }

    /// Returns the state of all functions, or of those in `namespace`, as JSON.
    pub(crate) fn describe(&self, namespace: Option<&str>) -> serde_json::Value {
        let served = self.served();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_functions = by_function(&served);
        let functions = parts.functions.values().map(|running| &running.function);
        let functions =
            functions.filter(|function| namespace.is_none_or(|own| function.name.namespace == own));
        let functions = functions.map(|function| {
            let variants = of_functions
                .get(&Arc::as_ptr(function))
                .into_iter()
                .flatten();
            let variants = variants.map(|it| {
                let judged = it.metrics.judged();
                serde_json::json!({
                    "revision": it.revision.name.name,
                    "objective_ms": it.revision.settings.slo.map(|slo| slo.as_millis()),
                    "percentile": it.revision.settings.slo_percentile,
                    "judged": judged.all,
                    "in_time": judged.in_time,
                })
            });
            let status = function.status();
            let instances = status.instances.iter().map(|it| {
                serde_json::json!({
                    "address": it.instance.address.to_string(),
                    "revision": it.instance.revision.name,
                    "requests": it.requests,
                    "ejected": it.is_ejected,
                })
            });
            serde_json::json!({
                "namespace": function.name.namespace,
                "function": function.name.name,
                "version": function.name.version,
                "waiting": status.waiting,
                "waiting_by_slack": status.by_slack,
                "waiting_max": status.waiting_max,
                "ejected": status.ejected,
                "variants": variants.collect::<Vec<_>>(),
                "instances": instances.collect::<Vec<_>>(),
            })
        });
        serde_json::json!({ "functions": functions.collect::<Vec<_>>() })
    }
}

/// Returns the revisions of each function, keyed by the function's address.
fn by_function(served: &[Arc<LiveRevision>]) -> HashMap<*const Function, Vec<&Arc<LiveRevision>>> {
    let mut of_functions: HashMap<_, Vec<_>> = HashMap::new();
    for revision in served {
        let function = Arc::as_ptr(&revision.function);
        of_functions.entry(function).or_default().push(revision);
    }
    of_functions
}

/// Returns the served revision of this name.
fn known<'a>(
    revisions: &'a Revisions,
    namespace: &str,
    name: &str,
) -> Option<&'a Arc<LiveRevision>> {
    revisions.get(namespace)?.get(name)?.as_ref()
}

impl LiveRevision {
    /// Returns whether this serves `revision` unchanged, apart from its pods.
    fn is_as(&self, revision: &Revision) -> bool {
        let own = &self.revision;
        (&own.service, &own.configuration, &own.settings)
            == (
                &revision.service,
                &revision.configuration,
                &revision.settings,
            )
            && own.container_concurrency == revision.container_concurrency
            && own.needs_readiness == revision.needs_readiness
            && own.time_limits() == revision.time_limits()
    }
}

/// Returns the TLS settings for the pods of a revision, which have Knative's certificate of the namespace.
fn client_tls(trust: &Arc<TrustStore>, revision: &RevisionName) -> Option<ClientTls> {
    let made = ClientTls::for_pods(Arc::clone(trust), &revision.namespace);
    let refuse = |error: &_| {
        tracing::error!(%error, %revision, "cannot verify its pods' certificates: they get no requests");
    };
    made.inspect_err(refuse).ok()
}
