//! Role `control`: puts role `data` into the path of revisions, and removes it from there.
//!
//! Several processes may run; one leads, by a Lease. Only the leader writes, and it writes only EndpointSlices of its
//! own and one label of Knative's Endpoints.

mod attach;
mod certificates;
mod check;
mod cluster;
mod config;
mod detach;
mod facts;
mod functions;
mod lease;
mod leave;
mod live;
mod metrics;
mod names;
mod nodes;
mod pods;
mod query;
mod webhook;

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::live::page as live_page;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use kube::api::Api;
use kube::runtime::events::{Recorder, Reporter};
use mutual_tls::{Identity, Pem, name_of};
use proxy::body::ProxyBody;
use proxy::clock::Clock;
use proxy::connection::{self, Handler, Shutdown};
use proxy::limits::Limits;
use proxy::process::{Servers, Signals};
use proxy::{listen, respond, scrape};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

pub(crate) use check::{CheckArguments, check};
pub(crate) use config::{ControlArguments, ControlConfig};
pub(crate) use detach::{DetachArguments, detach};

use self::live::Gatherer;
use crate::admin::access::Access;
use crate::admin::remote::{Remote, Resource};
use crate::source::kubernetes;
use crate::{FUNCTIONS_PORT, METRICS_PORT, StartError};
use attach::Attacher;
use certificates::Keeper;
use cluster::{Cluster, Concern};
use functions::Functions;
use lease::Candidate;
use metrics::Metrics;
use nodes::Nodes;
use webhook::{Port, Webhook};

/// Period at which a process that does not lead checks whether Weir is being removed.
const LEAVING_PERIOD: Duration = Duration::from_millis(500);
/// Time which such a process leaves to the leader before it detaches revisions itself.
const LEAVING_PATIENCE: Duration = Duration::from_secs(5);

/// Returns the FNV-1a hash of a text. It is the same in every build, so that a roll-out moves no function.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The server on port 9476: `/metrics`, and `/ready` for the kubelet.
#[derive(Debug)]
struct Page {
    metrics: Metrics,
    cluster: Arc<Cluster>,
    candidate: Arc<Candidate>,
    is_ready: AtomicBool,
    port: Arc<Port>,
}

impl Handler for Page {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: connection::Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        if request.uri().path() == "/ready" {
            return scrape::answer(&request, "/ready", || {
                let missing = if !self.is_ready.load(Ordering::Relaxed) {
                    "the caches of Kubernetes objects are not filled yet"
                } else if !self.port.is_open() {
                    "there is no certificate for the webhooks yet: the leader creates it"
                } else {
                    return Response::new(ProxyBody::full("ok\n"));
                };
                respond::error(StatusCode::SERVICE_UNAVAILABLE, missing)
            });
        }
        scrape::answer(&request, "/metrics", || {
            let families = self
                .metrics
                .gather(self.candidate.leads(), self.cluster.failures());
            scrape::metrics(&families)
        })
    }
}

/// Runs role `control` until SIGTERM, or until the Lease is lost.
///
/// # Errors
///
/// Fails if a port cannot be bound, or if no Kubernetes API is configured.
pub(crate) async fn run(config: ControlConfig) -> Result<ExitCode, StartError> {
    let scrapes = listen::listen(config.bind, METRICS_PORT)?;
    let lives = listen::listen(config.bind, FUNCTIONS_PORT)?;
    let mut signals = Signals::take()?;
    let clock = Clock::start();
    let metrics = Metrics::new()?;
    let client = kubernetes::client().await.map_err(StartError::Kubernetes)?;
    let (cluster, concerns) = Cluster::follow(&client, &config);
    let cluster = Arc::new(cluster);
    let leases = Api::namespaced(client.clone(), &config.namespace);
    let candidate = Candidate::new(leases, config.pod.clone(), config.terms, clock);
    let candidate = Arc::new(candidate);
    let servers = Arc::new(Servers {
        limits: Limits::default(),
        shutdown: Arc::<Shutdown>::default(),
        connections: TaskTracker::new(),
    });
    let webhook = Arc::new(Webhook {
        metrics: metrics.clone(),
        cluster: Arc::clone(&cluster),
        delivery: config.delivery.clone(),
        runtime_class: config.runtime_class.clone(),
    });
    let port = Arc::new(Port::new(config.bind, Arc::clone(&servers), webhook)?);
    let page = Arc::new(Page {
        metrics: metrics.clone(),
        cluster: Arc::clone(&cluster),
        candidate: Arc::clone(&candidate),
        is_ready: AtomicBool::new(false),
        port: Arc::clone(&port),
    });
    servers.serve(scrapes, None, &page);
    let reporter = Reporter {
        controller: names::MANAGER.to_owned(),
        instance: Some(config.pod.clone()),
    };
    let attacher = Arc::new(Attacher::new(
        client.clone(),
        Arc::clone(&cluster),
        Arc::clone(&candidate),
        Recorder::new(client.clone(), reporter),
        metrics,
        clock,
    ));
    tracing::info!(
        pod = config.pod,
        namespace = config.namespace,
        "weir-control has started"
    );
    let work = async {
        cluster.wait_for_caches().await;
        page.is_ready.store(true, Ordering::Relaxed);
        lead(Arc::clone(&attacher), concerns).await;
    };
    let identity = Arc::<Identity>::default();
    let keeper = Keeper::new(&config);
    let certificates = async {
        cluster.wait_for_caches().await;
        tokio::join!(
            keeper.run(&client, &candidate),
            keeper.follow(client.clone(), |pem| {
                let Pem {
                    certificate, key, ..
                } = pem.clone();
                if let Err(error) = port.take(certificate, key) {
                    tracing::error!(%error, "cannot serve the webhooks");
                }
                if let Err(error) = identity.set(pem) {
                    tracing::error!(%error, "cannot connect to agents");
                }
            }),
        );
    };
    let nodes = Nodes {
        client: client.clone(),
        namespace: config.agent_namespace.clone(),
        identity: Arc::clone(&identity),
        cluster: Arc::clone(&cluster),
        clock,
    };
    let functions = Functions {
        client: client.clone(),
        agent_namespace: config.agent_namespace.clone(),
        period: config.status_period,
        identity: Arc::clone(&identity),
        cluster: Arc::clone(&cluster),
        attacher: Arc::clone(&attacher),
        clock,
    };
    let live = live_page::Page::new(live_hosts(&config));
    let gatherer = Gatherer::new(
        client.clone(),
        config.agent_namespace.clone(),
        Arc::clone(&identity),
        Arc::clone(&cluster),
        Arc::clone(&attacher),
        clock,
    );
    let shown = async {
        cluster.wait_for_caches().await;
        live.run(gatherer).await;
    };
    let remote = Remote {
        resource: Resource::Live(Arc::clone(&live)),
        identity: Arc::clone(&identity),
        access: Some(Access::new(client.clone())),
    };
    tokio::spawn(Arc::new(remote).run(lives));
    // Once its objects are released, the process continues until it is deleted as well.
    let leave = async {
        leave::run(client.clone(), &cluster, &config).await;
    };
    let mut work = pin!(work);
    let mut lost = pin!(candidate.run());
    let mut leave = pin!(leave);
    let mut certificates = pin!(certificates);
    let mut nodes = pin!(nodes.run(&candidate));
    let mut functions = pin!(functions.run(&candidate));
    let mut shown = pin!(shown);
    let mut has_left = false;
    let mut is_stopping = false;
    let mut is_lost = false;
    loop {
        tokio::select! {
            () = &mut lost, if !is_lost => {
                is_lost = true;
                // The Lease is deleted with its namespace, and detaching needs none.
                if cluster.is_leaving() || leave::has_begun(&client, &config).await {
                    tracing::info!("the lease is deleted since Weir is being removed: this process continues to detach revisions");
                    continue;
                }
                tracing::error!("the lease is lost: another process may lead, so this one exits");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut work => {
                tracing::error!("reconciliation ended unexpectedly");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut certificates => {
                tracing::error!("the certificates' task ended unexpectedly");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut nodes => {
                tracing::error!("the nodes' task ended unexpectedly");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut functions => {
                tracing::error!("the GpuFunctions' task ended unexpectedly");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut shown => {
                tracing::error!("the live page's task ended unexpectedly");
                return Ok(ExitCode::FAILURE);
            }
            () = &mut leave, if !has_left => has_left = true,
            () = signals.next() => {
                if is_stopping {
                    return Ok(ExitCode::FAILURE);
                }
                // While Weir is being removed, there may be no other process to complete it.
                if !has_left && leave::has_begun(&client, &config).await {
                    is_stopping = true;
                    continue;
                }
                break;
            }
        }
        if is_stopping && has_left {
            break;
        }
    }
    candidate.release().await;
    Ok(ExitCode::SUCCESS)
}

/// Returns the host names under which the live page is served, in addition to IP addresses.
fn live_hosts(config: &ControlConfig) -> Vec<String> {
    let service = format!("{}.{}", names::CONTROL, config.namespace);
    vec![
        name_of("control"),
        format!("{service}.svc"),
        format!("{service}.svc.cluster.local"),
        service,
    ]
}

/// Waits until this process leads, or until Weir is being removed and there may be no leader any more. Then reconciles
/// revisions; never returns.
async fn lead(attacher: Arc<Attacher>, mut concerns: mpsc::Receiver<Concern>) {
    let mut elected = pin!(attacher.candidate.elected());
    let mut leaving = pin!(async {
        while !attacher.cluster.is_leaving() {
            tokio::time::sleep(LEAVING_PERIOD).await;
        }
        // A leader has detached everything by then.
        tokio::time::sleep(LEAVING_PATIENCE).await;
    });
    loop {
        tokio::select! {
            () = &mut elected => break,
            () = &mut leaving => break,
            // All revisions are reconciled once it leads.
            _concern = concerns.recv() => {}
        }
    }
    attacher.pods.probe(&attacher.cluster.pods).await;
    let changed = stream::unfold(Arc::clone(&attacher), |attacher| async move {
        let mut tick = tokio::time::interval(pods::PROBE_PERIOD);
        tick.tick().await;
        loop {
            tick.tick().await;
            if attacher.pods.probe(&attacher.cluster.pods).await {
                return Some((Concern::All, attacher));
            }
        }
    });
    let concerns = stream::unfold(concerns, |mut concerns| async move {
        Some((concerns.recv().await?, concerns))
    });
    let first = stream::once(std::future::ready(Concern::All));
    let all = stream::select(changed.boxed(), first.chain(concerns.boxed()));
    Arc::clone(&attacher).run(all).await;
}

#[cfg(test)]
mod tests {
    #[test]
    fn hash_matches_the_published_vectors() {
        assert_eq!(super::hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::hash("foobar"), 0x8594_4171_f739_67e8);
    }
}
