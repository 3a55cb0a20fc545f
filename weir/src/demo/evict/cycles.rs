//! Random cycles of eviction and return while requests are being served.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::sleep;

use super::super::random::Random;
use super::order;
use super::server::{Answer, Server, infer};

/// Number of refusals in a row after which a model counts as one that cannot leave.
const REFUSALS_MAX: u32 = 1_000;
/// Number of clients of each model.
const CLIENTS: usize = 2;
/// Longest pause between two requests, and before an order, in ms.
const PAUSE_MAX: usize = 10;

/// Outcome of the cycles.
#[derive(Debug, Default)]
pub(super) struct Cycles {
    /// Number of evictions from which the model has returned.
    pub(super) done: u32,
    /// Number of requests that were answered with the right bytes.
    pub(super) right: u32,
    /// Number of those answered with others.
    pub(super) wrong: u32,
    /// Number of those not answered.
    pub(super) lost: u32,
    /// Number of blocks of weights which the driver no longer reported at their addresses, over all answers.
    pub(super) moved: u64,
    /// Number of refused evictions, by reason.
    pub(super) refused: BTreeMap<String, u32>,
}

/// Answers of the clients.
#[derive(Debug, Default)]
struct Answers {
    right: AtomicU32,
    wrong: AtomicU32,
    lost: AtomicU32,
}

impl Answers {
    fn count(&self, answer: Answer) {
        let counter = match answer {
            Answer::Right => &self.right,
            Answer::Wrong => &self.wrong,
            Answer::Lost => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Evicts the servers' models `count` times in all, each again as soon as it is back: by an order, or for a request. Clients of each send requests
/// meanwhile.
pub(super) async fn run(
    control: SocketAddr,
    servers: Vec<(String, Server)>,
    count: u32,
    seed: u64,
) -> anyhow::Result<Cycles> {
    let answers = Arc::new(Answers::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicU32::new(0));
    let mut random = Random::new(seed);
    let (mut clients, mut models) = (Vec::new(), Vec::new());
    for (pod, server) in servers {
        for _ in 0..CLIENTS {
            let (own, over) = (Arc::clone(&answers), Arc::clone(&is_over));
            let of_client = Random::new(random.next());
            clients.push(tokio::spawn(serve(server.address(), own, over, of_client)));
        }
        let model = Model {
            control,
            pod,
            server,
            answers: Arc::clone(&answers),
            random: Random::new(random.next()),
            cycles: Cycles::default(),
        };
        models.push(tokio::spawn(model.run(Arc::clone(&begun), count)));
    }
    let mut cycles = Cycles::default();
    let mut servers = Vec::new();
    for model in models {
        let (own, server) = model
            .await
            .context("the cycles of a model have panicked")??;
        cycles.done += own.done;
        servers.push(server);
        for (reason, count) in own.refused {
            *cycles.refused.entry(reason).or_default() += count;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.context("a client has panicked")?;
    }
    for server in servers {
        cycles.moved += server.moved().await?;
        server.stop().await?;
    }
    let number = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    Ok(Cycles {
        right: number(&answers.right),
        wrong: number(&answers.wrong),
        lost: number(&answers.lost),
        ..cycles
    })
}

/// A model which leaves and returns.
struct Model {
    control: SocketAddr,
    pod: String,
    server: Server,
    answers: Arc<Answers>,
    random: Random,
    cycles: Cycles,
}

impl Model {
    /// Runs cycles until `count` of all models have begun.
    async fn run(mut self, begun: Arc<AtomicU32>, count: u32) -> anyhow::Result<(Cycles, Server)> {
        while begun.fetch_add(1, Ordering::Relaxed) < count {
            self.cycle().await?;
        }
        // Its clients still send requests.
        Ok((self.cycles, self.server))
    }

    /// Evicts the model, and waits until it is back.
    async fn cycle(&mut self) -> anyhow::Result<()> {
        pause(&mut self.random).await;
        let mut refusals = 0;
        while let Err(reason) = order::order(self.control, &self.pod, "evict").await? {
            refusals += 1;
            self.server.check()?;
            if refusals > REFUSALS_MAX {
                bail!(
                    "{} cannot evict after {REFUSALS_MAX} orders: {reason}",
                    self.pod
                );
            }
            *self.cycles.refused.entry(reason).or_default() += 1;
            pause(&mut self.random).await;
        }
        pause(&mut self.random).await;
        if self.random.below(2) == 0 {
            // Another restore may be on its way, for the client's request.
            let _restored = order::order(self.control, &self.pod, "restore").await?;
        }
        let seed = self.random.next() >> 32;
        self.answers.count(infer(self.server.address(), seed).await);
        self.server.check()?;
        self.cycles.done += 1;
        Ok(())
    }
}

async fn serve(
    address: SocketAddr,
    answers: Arc<Answers>,
    is_over: Arc<AtomicBool>,
    mut random: Random,
) {
    while !is_over.load(Ordering::Relaxed) {
        answers.count(infer(address, random.next() >> 32).await);
        pause(&mut random).await;
    }
}

async fn pause(random: &mut Random) {
    sleep(Duration::from_millis(random.below(PAUSE_MAX) as u64)).await;
}
