//! The live page of a cluster: queries role `data` and agents once a second while the page is open.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use kube::Client;
use live::answers::{DataAnswer, agent_events};
use live::board::{AgentAnswer, Answers, Board, EVENTS_MAX};
use live::page::Source;
use live::state::{EventState, State};
use mutual_tls::Identity;
use proxy::clock::Clock;
use tokio::time::{Instant, timeout};

use super::attach::Attacher;
use super::cluster::Cluster;
use super::nodes::agents;
use super::pods;
use super::query::{AGENT, CONCURRENCY, DATA, Program, ProgramClient};
use crate::view::RevisionName;

/// Period at which agents are listed by the API.
const AGENTS_PERIOD: Duration = Duration::from_secs(15);
/// Longest time for the list of agents.
const LIST_MAX: Duration = Duration::from_millis(500);
/// Longest time for a program's answer, so that there is a state every second.
const ANSWER_MAX: Duration = Duration::from_millis(700);
/// Time for which a program that has not answered is not queried.
const QUERY_BACKOFF: Duration = Duration::from_secs(10);
/// Time for which an agent is not queried for events if its answer did not end.
const EVENTS_BACKOFF: Duration = Duration::from_secs(300);
/// Largest answer of role `data` in bytes.
const DATA_BYTES_MAX: usize = 8 << 20;
/// Largest answer of an agent in bytes.
const AGENT_BYTES_MAX: usize = 1 << 20;

/// Events of this process until the page reads them; beyond [`EVENTS_MAX`] the earliest are dropped.
#[derive(Debug, Default)]
pub(crate) struct Feed(Mutex<VecDeque<EventState>>);

impl Feed {
    /// Adds an event about the object `about`.
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

/// A program that is queried.
struct Contact {
    /// Name of the contacted pod, or of its node.
    name: String,
    client: ProgramClient,
    /// Time until which the program is not queried, since it did not answer.
    silent_until: Option<Instant>,
    /// Time until which the program is not queried for events: the answer with events did not end, as that of an agent
    /// of an earlier release.
    eventless_until: Option<Instant>,
}

/// Gathers the states of the page.
pub(crate) struct Gatherer {
    client: Client,
    agent_namespace: String,
    identity: Arc<Identity>,
    cluster: Arc<Cluster>,
    attacher: Arc<Attacher>,
    clock: Clock,
    board: Board,
    data: Vec<Contact>,
    agents: Vec<Contact>,
    /// Time of the last list of agents.
    listed_at: Option<Instant>,
    /// Addresses of the agents listed last, by node.
    listed: BTreeMap<String, IpAddr>,
    /// The reason why agents could not be listed; `None` if they were.
    unlisted: Option<String>,
}

impl Gatherer {
    /// Returns a gatherer without any connections yet.
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
            data: Vec::new(),
            agents: Vec::new(),
            listed_at: None,
            listed: BTreeMap::new(),
            unlisted: None,
        }
    }

    async fn list_agents(&mut self) {
        if self
            .listed_at
            .is_some_and(|at| at.elapsed() < AGENTS_PERIOD)
        {
            return;
        }
        self.listed_at = Some(Instant::now());
        let listed = timeout(LIST_MAX, agents(&self.client, &self.agent_namespace)).await;
        self.unlisted = match listed {
            Ok(Ok(listed)) => {
                // A pod about to be deleted may be listed beside its successor.
                self.listed = listed.into_iter().collect();
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the API does not answer".to_owned()),
        };
    }
}

impl Source for Gatherer {
    async fn gather(&mut self) -> State {
        let mut answers = Answers {
            events: self.attacher.feed.take(),
            ..Answers::default()
        };
        if !self.attacher.candidate.leads() {
            let notice = "this replica of weir-control does not lead: the leader has the attachment of functions and their events";
            answers.notices.push(notice.to_owned());
        }
        if !self.identity.is_known() {
            let notice =
                "this program has no certificate yet, and cannot query other programs".to_owned();
            answers.notices.push(notice);
        }
        let pods = pods::ready(&self.cluster.pods);
        let pods = pods
            .iter()
            .filter_map(|pod| Some((pod.name.clone(), pod.address()?)));
        let pods: Vec<_> = pods.collect();
        self.list_agents().await;
        if let Some(why) = &self.unlisted {
            let notice = format!("agents could not be listed: {why}");
            answers.notices.push(notice);
        }
        let identity = &*self.identity;
        let agents = self.listed.iter().map(|(node, ip)| (node.clone(), *ip));
        let data = contacts(DATA, &mut self.data, pods);
        let nodes = contacts(AGENT, &mut self.agents, agents.collect());
        let data = stream::iter(data).map(|contact| query_data(identity, contact));
        let board = &self.board;
        let nodes = stream::iter(nodes).map(|contact| {
            let after = board.sequence(&contact.name);
            query_agent(identity, contact, after)
        });
        let (data, nodes): (Vec<_>, Vec<_>) = tokio::join!(
            data.buffer_unordered(CONCURRENCY).collect(),
            nodes.buffer_unordered(CONCURRENCY).collect(),
        );
        for (contact, answer) in data {
            answers.data.push((contact.name.clone(), answer));
            self.data.push(contact);
        }
        for (contact, answer) in nodes {
            if contact.eventless_until.is_some() {
                let node = &contact.name;
                let notice = format!(
                    "events of {node} are not shown: its agent is slow, or of an earlier release"
                );
                answers.notices.push(notice);
            }
            answers.agents.push((contact.name.clone(), answer));
            self.agents.push(contact);
        }
        let attacher = &self.attacher;
        let is_attached = |namespace: &str, name: &str| {
            let name = RevisionName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            attacher
                .reported_status(&name)
                .map(|(is_attached, _)| is_attached)
        };
        let now = (self.clock.now(), unix_ms());
        self.board.observe(now, answers, is_attached)
    }
}

/// Returns the contacts for `wanted`: those of `known` with an unchanged address, and new ones for the rest.
fn contacts(
    program: Program,
    known: &mut Vec<Contact>,
    wanted: Vec<(String, IpAddr)>,
) -> Vec<Contact> {
    let known = std::mem::take(known).into_iter();
    let mut known: HashMap<_, _> = known.map(|own| (own.name.clone(), own)).collect();
    let contacts = wanted.into_iter().map(|(name, ip)| {
        let own = known.remove(&name);
        let own = own.filter(|own| own.client.ip() == ip);
        own.unwrap_or_else(|| Contact {
            name,
            client: ProgramClient::new(program, ip),
            silent_until: None,
            eventless_until: None,
        })
    });
    contacts.collect()
}

impl Contact {
    /// Returns the answer on `path`; `None` if it is late or an error, or while the program is not queried.
    async fn get(&mut self, identity: &Identity, path: &str, bytes_max: usize) -> Option<Bytes> {
        if self
            .silent_until
            .is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        let answer = timeout(ANSWER_MAX, self.client.get(identity, path, bytes_max)).await;
        match answer {
            Ok(Ok(answer)) => {
                self.silent_until = None;
                Some(answer)
            }
            Ok(Err(_)) | Err(_) => {
                self.silent_until = Some(Instant::now() + QUERY_BACKOFF);
                None
            }
        }
    }
}

async fn query_data(identity: &Identity, mut own: Contact) -> (Contact, Option<DataAnswer>) {
    let answer = own.get(identity, "/v1/functions", DATA_BYTES_MAX).await;
    let answer = answer.and_then(|answer| serde_json::from_slice(&answer).ok());
    (own, answer)
}

async fn query_agent(
    identity: &Identity,
    mut own: Contact,
    after: u64,
) -> (Contact, Option<AgentAnswer>) {
    let slots = own.get(identity, "/v1/slots", AGENT_BYTES_MAX).await;
    let slots = slots.and_then(|slots| serde_json::from_slice(&slots).ok());
    let Some(slots) = slots else {
        return (own, None);
    };
    if own
        .eventless_until
        .is_some_and(|until| Instant::now() < until)
    {
        return (own, Some((slots, Vec::new())));
    }
    let path = format!("/v1/events?after={after}");
    let events = own.get(identity, &path, AGENT_BYTES_MAX).await;
    own.eventless_until = None;
    if events.is_none() {
        // The program has just answered another query: only its events are affected.
        own.eventless_until = Some(Instant::now() + EVENTS_BACKOFF);
        own.silent_until = None;
    }
    let events = events.and_then(|lines| agent_events(&lines).ok());
    (own, Some((slots, events.unwrap_or_default())))
}

fn unix_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "when it was, for people")]
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
