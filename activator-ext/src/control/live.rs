//! What the live page shows of a cluster: role `data` and agents, asked once a second while somebody reads.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt as _, stream};
use kube::Client;
use live::answers::{DataAnswer, agent_events};
use live::board::{AgentAnswer, Answers, Board, EVENTS_MAX};
use live::page::Source;
use live::state::{EventState, State};
use mutual_tls::Identity;
use proxy::clock::Clock;
use tokio::time::Instant;

use super::ask::{AGENT, CONCURRENCY, DATA, Program, Respondent};
use super::attach::Attacher;
use super::cluster::Cluster;
use super::nodes::agents;
use super::pods;
use crate::view::RevisionName;

/// Agents are looked for this often: the API is asked each time.
const AGENTS_PERIOD: Duration = Duration::from_secs(15);

/// What this process has done, until the page takes it; of more than it shows the earliest are dropped.
#[derive(Debug, Default)]
pub(crate) struct Feed(Mutex<VecDeque<EventState>>);

impl Feed {
    /// Something was done about `about`.
    pub(crate) fn push(&self, kind: &str, about: String, text: &str) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(EventState {
            unix_ms: unix_ms(),
            kind: kind.to_owned(),
            about,
            text: text.to_owned(),
        });
    }

    fn take(&self) -> Vec<EventState> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *events).into()
    }
}

/// A program that is asked, by the name under which its answers are known.
type Asked = (String, Respondent);

/// Gathers states.
pub(crate) struct Gatherer {
    client: Client,
    agent_namespace: String,
    identity: Arc<Identity>,
    cluster: Arc<Cluster>,
    attacher: Arc<Attacher>,
    clock: Clock,
    board: Board,
    data: HashMap<String, Respondent>,
    agents: HashMap<String, Respondent>,
    /// When agents were last looked for, and which there were.
    listed: Option<(Instant, Vec<(String, IpAddr)>)>,
}

impl Gatherer {
    /// Asks programs of the cluster, to which there are no connections yet.
    pub(crate) fn new(
        client: Client,
        agent_namespace: String,
        identity: Arc<Identity>,
        cluster: Arc<Cluster>,
        attacher: Arc<Attacher>,
        clock: Clock,
    ) -> Self {
        Self {
            client,
            agent_namespace,
            identity,
            cluster,
            attacher,
            clock,
            board: Board::default(),
            data: HashMap::new(),
            agents: HashMap::new(),
            listed: None,
        }
    }

    async fn list_agents(&mut self, notices: &mut Vec<String>) -> Vec<(String, IpAddr)> {
        if let Some((at, listed)) = &self.listed
            && at.elapsed() < AGENTS_PERIOD
        {
            return listed.clone();
        }
        match agents(&self.client, &self.agent_namespace).await {
            Ok(listed) => {
                self.listed = Some((Instant::now(), listed.clone()));
                listed
            }
            Err(error) => {
                notices.push(format!("it is not known which agents there are: {error}"));
                self.listed
                    .clone()
                    .map(|(_, listed)| listed)
                    .unwrap_or_default()
            }
        }
    }
}

impl Source for Gatherer {
    async fn gather(&mut self) -> State {
        let mut answers = Answers {
            events: self.attacher.feed.take(),
            ..Answers::default()
        };
        if !self.attacher.candidate.leads() {
            let notice = "this replica of weir-control does not lead: it does not know which functions are attached, and events about them are at the other one";
            answers.notices.push(notice.to_owned());
        }
        let pods = pods::ready(&self.cluster.pods);
        let pods = pods
            .iter()
            .filter_map(|pod| Some((pod.name.clone(), pod.address()?)));
        let pods: Vec<_> = pods.collect();
        let agents = self.list_agents(&mut answers.notices).await;
        let identity = &*self.identity;
        let data = respondents(DATA, &mut self.data, pods);
        let nodes = respondents(AGENT, &mut self.agents, agents);
        let data = stream::iter(data).map(|asked| ask_data(identity, asked));
        let board = &self.board;
        let nodes = stream::iter(nodes).map(|asked| {
            let after = board.sequence(&asked.0);
            ask_agent(identity, asked, after)
        });
        let (data, nodes): (Vec<_>, Vec<_>) = tokio::join!(
            data.buffer_unordered(CONCURRENCY).collect(),
            nodes.buffer_unordered(CONCURRENCY).collect(),
        );
        for ((name, own), answer) in data {
            answers.data.push((name.clone(), answer));
            self.data.insert(name, own);
        }
        for ((node, own), answer) in nodes {
            answers.agents.push((node.clone(), answer));
            self.agents.insert(node, own);
        }
        let attacher = &self.attacher;
        let is_attached = |namespace: &str, name: &str| {
            let name = RevisionName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            attacher.standing(&name).map(|(is_attached, _)| is_attached)
        };
        let now = (self.clock.now(), unix_ms());
        self.board.observe(now, answers, is_attached)
    }
}

/// Takes those out of `known` that are still at their addresses, and makes the others.
fn respondents(
    program: Program,
    known: &mut HashMap<String, Respondent>,
    wanted: Vec<(String, IpAddr)>,
) -> Vec<Asked> {
    let mut known = std::mem::take(known);
    let respondents = wanted.into_iter().map(|(name, ip)| {
        let own = known.remove(&name).filter(|own| own.ip() == ip);
        (name, own.unwrap_or_else(|| Respondent::new(program, ip)))
    });
    respondents.collect()
}

async fn ask_data(identity: &Identity, (name, mut own): Asked) -> (Asked, Option<DataAnswer>) {
    let answer = own.get(identity, "/v1/functions").await.ok();
    let answer = answer.and_then(|answer| serde_json::from_slice(&answer).ok());
    ((name, own), answer)
}

/// Events are missing of an agent of an earlier release: its stream of them has no end.
async fn ask_agent(
    identity: &Identity,
    (node, mut own): Asked,
    after: u64,
) -> (Asked, Option<AgentAnswer>) {
    let slots = own.get(identity, "/v1/slots").await.ok();
    let slots = slots.and_then(|slots| serde_json::from_slice(&slots).ok());
    let Some(slots) = slots else {
        return ((node, own), None);
    };
    let path = format!("/v1/events?after={after}");
    let events = own.get(identity, &path).await.ok();
    let events = events.and_then(|lines| agent_events(&lines).ok());
    ((node, own), Some((slots, events.unwrap_or_default())))
}

fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "when it was, for people")]
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
