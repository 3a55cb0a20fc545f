//! `weir demo --live`: the live page of the demo's cluster, on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::live::answers::agent_events;
use ::live::board::{Answers, Board};
use ::live::page::{Page, Source};
use ::live::server::{listen, serve};
use ::live::state::State;
use anyhow::Context as _;
use policy::Time;
use serde_json::json;
use tokio::time::Instant;

use super::super::children::get;
use super::cluster::{Addresses, Cluster};
use super::function;
use crate::output::print;

/// Duration without `--seconds`: until interrupted.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Time after which the function without an instance gets its first one.
const WARM_AFTER: Duration = Duration::from_secs(10);
/// Time after which the application of [`super::function::BROKEN`] is killed.
const BREAK_AFTER: Duration = Duration::from_secs(20);
/// Interval between checks of the demo's processes.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Names of the demo's nodes: one with shared GPUs, and one whose pods take turns.
const NODES: [&str; 2] = ["demo-node", "demo-turns"];

/// Queries the demo's programs for the page's state.
struct Gatherer {
    addresses: Addresses,
    board: Board,
    begin: Instant,
}

impl Source for Gatherer {
    async fn gather(&mut self) -> State {
        let Addresses {
            data,
            control,
            agents,
        } = self.addresses;
        let body = async |address: SocketAddr, path: &str| {
            let answer = get(address, path, &[]).await.ok();
            answer
                .filter(|(status, _)| *status == 200)
                .map(|(_, text)| text)
        };
        let functions = body(data, "/v1/functions").await;
        let functions = functions.and_then(|text| serde_json::from_str(&text).ok());
        let mut nodes = Vec::new();
        for (agent, node) in agents.into_iter().zip(NODES) {
            let slots = body(agent, "/v1/slots").await;
            let slots = slots.and_then(|text| serde_json::from_str(&text).ok());
            let after = self.board.sequence(node);
            let events = body(agent, &format!("/v1/events?after={after}")).await;
            let events = events.and_then(|lines| agent_events(lines.as_bytes()).ok());
            let answer = slots.map(|slots| (slots, events.unwrap_or_default()));
            nodes.push((node.to_owned(), answer));
        }
        let attached = body(control, "/metrics").await.unwrap_or_default();
        let is_attached = |_: &str, revision: &str| {
            let label = format!("revision=\"{revision}\"");
            let mut lines = attached
                .lines()
                .filter(|line| line.starts_with("weir_attached{"));
            let line = lines.find(|line| line.contains(&label))?;
            Some(line.ends_with(" 1"))
        };
        let answers = Answers {
            data: vec![("weir-activator-0".to_owned(), functions)],
            agents: nodes,
            ..Answers::default()
        };
        #[expect(clippy::disallowed_methods, reason = "wall-clock time, for display")]
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now = (Time(nanos(self.begin.elapsed())), nanos(unix) / 1_000_000);
        self.board.observe(now, answers, is_attached)
    }
}

/// Serves the page for `seconds`, or until interrupted.
pub(in super::super) async fn run(
    bind: IpAddr,
    seconds: Option<f64>,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into())
        .await
        .context("no port is free on 127.0.0.1")?;
    let url = format!("http://{}/live/", listener.local_addr()?);
    let mut cluster = Cluster::start(bind, None).await?;
    let page = Page::new(Vec::new());
    let begin = Instant::now();
    let gatherer = Gatherer {
        addresses: cluster.addresses(),
        board: Board::default(),
        begin,
    };
    let own = Arc::clone(&page);
    let gathering = tokio::spawn(async move { own.run(gatherer).await });
    let serving = tokio::spawn(serve(listener, move |request| {
        let page = Arc::clone(&page);
        async move { page.respond(&request, false).await }
    }));
    print(&if is_json {
        json!({ "url": url }).to_string()
    } else {
        format!(
            "{url}\nNine functions under load; six of them miss their objectives: by a queue, by an execution that is longer than the objective, \
             by an application that breaks off after {BREAK_AFTER:?}, by a cold start that ends after {WARM_AFTER:?}, by waits for another function's \
             turn on the GPU, and by loads of their model. Interrupt it to end it."
        )
    })?;
    let end = begin + seconds.map_or(FOR_EVER, Duration::from_secs_f64);
    let calls = function::FUNCTIONS
        .map(|own| tokio::spawn(function::call(own, cluster.address(), end, own.burst)));
    let (mut is_warm, mut is_broken) = (false, false);
    while Instant::now() < end {
        tokio::time::sleep_until(end.min(Instant::now() + CHECK_PERIOD)).await;
        cluster.check()?;
        if !is_warm && begin.elapsed() > WARM_AFTER {
            is_warm = true;
            cluster.warm();
        }
        if !is_broken && begin.elapsed() > BREAK_AFTER {
            is_broken = true;
            cluster.break_application()?;
        }
    }
    for task in calls {
        task.abort();
    }
    serving.abort();
    gathering.abort();
    Ok(ExitCode::SUCCESS)
}
