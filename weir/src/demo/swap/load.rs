//! Requests of the plan, and their answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::replay::Computed;
use super::plan::{Arrival, Plan};

/// Longest time until an answer, before it is slowed.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer is that of the model, after this time, by this computation.
    Right(Duration, Computed),
    /// The answer is wrong.
    Wrong,
    /// The request was refused with 503.
    Refused,
    /// There is no answer, or an error.
    Lost,
}

/// Sends all requests of the plan at their times. `address_of` returns where a function's instance listens; `None`: it is not hosted, so that its
/// requests are refused. Returns the time on `CLOCK_MONOTONIC` at which the plan begins, in ns, and the outcomes in the order of arrival.
pub(super) async fn send(
    plan: &Plan,
    address_of: impl Fn(usize, usize) -> Option<SocketAddr>,
) -> (u64, Vec<Outcome>) {
    let client: Client<HttpConnector, Full<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let client = Arc::new(client);
    let (begin, begin_ns) = (Instant::now(), softgpu_wire::clock::now().0);
    let answer_max = ANSWER_MAX * plan.slow;
    let mut requests = JoinSet::new();
    let mut outcomes = vec![Outcome::Refused; plan.arrivals.len()];
    for (number, arrival) in plan.arrivals.iter().enumerate() {
        let Some(address) = address_of(arrival.function, arrival.instance) else {
            continue;
        };
        let due = begin + arrival.at;
        sleep_until(due).await;
        let (client, arrival) = (Arc::clone(&client), *arrival);
        requests.spawn(async move {
            let outcome = exchange(&client, address, &arrival, due, answer_max).await;
            (number, outcome)
        });
    }
    while let Some(Ok((number, outcome))) = requests.join_next().await {
        outcomes[number] = outcome;
    }
    (begin_ns, outcomes)
}

async fn exchange(
    client: &Client<HttpConnector, Full<bytes::Bytes>>,
    address: SocketAddr,
    arrival: &Arrival,
    due: Instant,
    answer_max: Duration,
) -> Outcome {
    let body = format!(r#"{{"input":1,"output":1,"seed":{}}}"#, arrival.seed);
    let request = http::Request::post(format!("http://{address}/infer"));
    let Ok(request) = request.body(Full::new(bytes::Bytes::from(body))) else {
        return Outcome::Lost;
    };
    let answered = timeout(answer_max, async {
        let response = client.request(request).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, body))
    });
    let Ok(Some((status, body))) = answered.await else {
        return Outcome::Lost;
    };
    let took = due.elapsed();
    match status {
        200 => {
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            match answer["right"].as_bool() {
                Some(true) => match Computed::deserialize(&answer) {
                    Ok(computed) => Outcome::Right(took, computed),
                    Err(_) => Outcome::Wrong,
                },
                _ => Outcome::Wrong,
            }
        }
        503 => Outcome::Refused,
        _ => Outcome::Lost,
    }
}
