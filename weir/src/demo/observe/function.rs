//! The demo's functions: cost, load, and the cause of their missed objectives.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use model_server::Cost;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::super::children::Names;

/// A function of the demo.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function {
    /// Name of the Knative Service.
    pub(super) name: &'static str,
    /// Latency objective in ms.
    pub(super) objective_ms: u64,
    /// Computation time of each request, in ms.
    pub(super) cost_ms: u64,
    /// Number of requests sent at once.
    pub(super) burst: u32,
    /// Time of the first burst after the load begins, in ms.
    pub(super) first_ms: u64,
    /// Period of the bursts, in ms.
    pub(super) period_ms: u64,
    /// Queue depth at the function's pod.
    pub(super) depth: u32,
    /// Expected first cause in "Why missed"; `None` if no request misses.
    pub(super) cause: Option<&'static str>,
    /// How it shares a GPU by turns; `None`: it has one for itself, without an agent.
    pub(super) turns: Option<Turns>,
}

/// How a function shares a slot with another one, of which one computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// Both models are there.
    Beside,
    /// The slot has memory for one of the models.
    Instead,
}

impl Turns {
    /// All kinds of turns, each with a slot of its own.
    pub(super) const ALL: [Self; 2] = [Self::Beside, Self::Instead];

    /// Returns the name of the slot.
    pub(super) const fn slot(self) -> &'static str {
        match self {
            Self::Beside => "0",
            Self::Instead => "1",
        }
    }

    /// Returns the size of each model.
    pub(super) const fn weights(self) -> &'static str {
        match self {
            Self::Beside => "64MiB",
            Self::Instead => "1GiB",
        }
    }
}

/// Function that shows every panel of `weir-function`.
pub(super) const SHOWN: &str = "burst";
/// Function with an application which is killed.
pub(super) const BROKEN: &str = "broken";
/// Function without an instance at first.
pub(super) const COLD: &str = "cold";

/// All functions of the demo.
pub(super) const FUNCTIONS: [Function; 9] = [
    Function {
        name: "steady",
        objective_ms: 2_000,
        cost_ms: 10,
        burst: 1,
        first_ms: 0,
        period_ms: 200,
        depth: 10,
        cause: None,
        turns: None,
    },
    // Each burst keeps the instance busy for longer than the objective.
    Function {
        name: SHOWN,
        objective_ms: 200,
        cost_ms: 25,
        burst: 24,
        first_ms: 0,
        period_ms: 1_500,
        depth: 100,
        cause: Some("queue"),
        turns: None,
    },
    Function {
        name: "tight",
        objective_ms: 30,
        cost_ms: 60,
        burst: 1,
        first_ms: 0,
        period_ms: 250,
        depth: 10,
        cause: Some("execution"),
        turns: None,
    },
    Function {
        name: BROKEN,
        objective_ms: 2_000,
        cost_ms: 10,
        burst: 1,
        first_ms: 0,
        period_ms: 250,
        depth: 10,
        cause: Some("failed"),
        turns: None,
    },
    Function {
        name: COLD,
        objective_ms: 200,
        cost_ms: 10,
        burst: 4,
        first_ms: 0,
        period_ms: 60_000,
        depth: 10,
        cause: Some("cold-start"),
        turns: None,
    },
    // Its requests wait while one of the next function computes.
    Function {
        name: "waiting",
        objective_ms: 100,
        cost_ms: 10,
        burst: 1,
        first_ms: 0,
        period_ms: 250,
        depth: 10,
        cause: Some("lease"),
        turns: Some(Turns::Beside),
    },
    Function {
        name: "lengthy",
        objective_ms: 2_000,
        cost_ms: 300,
        burst: 1,
        first_ms: 0,
        period_ms: 400,
        depth: 10,
        cause: None,
        turns: Some(Turns::Beside),
    },
    // Its model leaves for that of the next function, and returns for each request. The two take turns to the half second: neither waits
    // while the other one's model is loaded, which would count as waiting for the lease.
    Function {
        name: "swapped",
        objective_ms: 100,
        cost_ms: 10,
        burst: 1,
        first_ms: 0,
        period_ms: 1_000,
        depth: 10,
        cause: Some("load"),
        turns: Some(Turns::Instead),
    },
    Function {
        name: "swapping",
        objective_ms: 2_000,
        cost_ms: 10,
        burst: 1,
        first_ms: 500,
        period_ms: 1_000,
        depth: 10,
        cause: None,
        turns: Some(Turns::Instead),
    },
];

impl Function {
    /// Returns the name of the function's only revision.
    pub(super) fn revision(&self) -> String {
        format!("{}-00001", self.name)
    }

    /// Returns the name of the function's pod.
    pub(super) fn pod(&self) -> String {
        format!("{}-pod", self.revision())
    }

    /// Returns the cost of the function's requests for the model-server.
    pub(super) const fn cost(&self) -> Cost {
        Cost {
            fixed_ns: self.cost_ms * 1_000_000,
            per_input_ns: 0,
            per_output_ns: 0,
        }
    }

    /// Returns the revision and settings of its queue-proxy.
    pub(super) fn names(&self) -> Names {
        Names {
            revision: self.revision(),
            environment: vec![
                ("SERVING_SERVICE", self.name.to_owned()),
                ("SERVING_POD", self.pod()),
                ("WEIR_FUNCTION", self.name.to_owned()),
                ("WEIR_QUEUE_DEPTH", self.depth.to_string()),
                ("WEIR_LATE", "serve".to_owned()),
                ("SERVING_LOGGING_LEVEL", "error".to_owned()),
            ],
            application: Vec::new(),
        }
    }

    /// Returns the annotations of the function's revision.
    pub(super) fn annotations(&self) -> Vec<(String, String)> {
        [
            ("weir.dev/slo", format!("{}ms", self.objective_ms)),
            ("weir.dev/function", self.name.to_owned()),
            ("weir.dev/queue-depth", self.depth.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// Sends a function's requests to activator-ext at `address` until `end`, open loop. Returns how many got an HTTP response, and
/// how many did not.
pub(super) async fn call(
    function: Function,
    address: SocketAddr,
    end: Instant,
    burst: u32,
) -> (u64, u64) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let first = Instant::now() + Duration::from_millis(function.first_ms);
    let mut tick = interval_at(first, Duration::from_millis(function.period_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut requests = JoinSet::new();
    while Instant::now() < end {
        tokio::select! {
            _tick = tick.tick() => {}
            () = tokio::time::sleep_until(end) => break,
        }
        for _ in 0..burst {
            requests.spawn(request(client.clone(), address, function.revision()));
        }
    }
    let answered = requests.join_all().await;
    let ok = answered.iter().filter(|is_answered| **is_answered).count() as u64;
    (ok, answered.len() as u64 - ok)
}

async fn request(
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    revision: String,
) -> bool {
    let request = http::Request::post(format!("http://{address}/infer"))
        .header("knative-serving-namespace", "default")
        .header("knative-serving-revision", revision)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(b"{\"input\":0,\"output\":0}")));
    let Ok(request) = request else {
        return false;
    };
    match client.request(request).await {
        Ok(response) => response.into_body().collect().await.is_ok(),
        Err(_) => false,
    }
}
