//! Cost of a request on many nodes relative to few: at most twice (docs/spec/targets.md).
//!
//! Without arguments: turns of 4 and of 1,000 nodes with 80 functions each, with the same number of requests, and the median of
//! the ratios. With `NODES FUNCTIONS SECONDS`, where functions are per node: one run. 10⁸ requests:
//! `cargo bench -p simulator --bench scale -- 1000 80 5400`.
//!
//! Times are processor times, so that other processes on the machine matter less. The set-up of functions is measured
//! separately from requests.

use std::io::Write as _;

use policy::{Span, Time};
use simulator::generate;
use simulator::node::{CountedSpan, Hardware, Outcome, run};
use simulator::random::Streams;
use simulator::rules::RuleName;

/// Mean rate of the workload for each function, in requests a minute.
const A_MINUTE: f64 = 13.95;
/// Number of requests in each run of a turn.
const REQUESTS: f64 = 2e6;
const TURNS: usize = 5;

struct Cost {
    outcome: Outcome,
    /// Processor time before the first request, and in all, in nanoseconds.
    before: f64,
    all: f64,
}

impl Cost {
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    fn of_request(&self) -> f64 {
        (self.all - self.before) / self.outcome.arrived as f64
    }
}

fn main() -> std::io::Result<()> {
    // Cargo adds `--bench`.
    let own = std::env::args().skip(1).filter(|own| own != "--bench");
    let numbers: Option<Vec<u32>> = own.map(|own| own.parse().ok()).collect();
    let numbers = numbers.filter(|own| own.is_empty() || own.len() == 3 && !own.contains(&0));
    let Some(numbers) = numbers else {
        let allowed = "nothing, or NODES FUNCTIONS SECONDS: whole numbers above 0";
        return Err(std::io::Error::other(allowed));
    };
    let mut out = std::io::stdout().lock();
    if let [nodes, functions, seconds] = numbers[..] {
        let cost = measured(nodes, functions, f64::from(seconds));
        let memory = line("/proc/self/status", "VmHWM:");
        let of_request = cost.of_request();
        let Outcome {
            arrived,
            events,
            in_flight_max,
            ..
        } = cost.outcome;
        writeln!(
            out,
            "{arrived} requests, {events} events, {in_flight_max} at once at most\n\
             {:.2} s before the first, {:.1} s in all, {of_request:.0} ns a request\n\
             {memory} at most, results {:016x}",
            cost.before / 1e9,
            cost.all / 1e9,
            digest(&cost.outcome),
        )?;
        return Ok(());
    }
    let mut ratios = Vec::new();
    for turn in 1..=TURNS {
        let [few, many] = [4, 1_000].map(|nodes| {
            let seconds = REQUESTS / (A_MINUTE / 60.0 * 80.0 * f64::from(nodes));
            measured(nodes, 80, seconds).of_request()
        });
        writeln!(
            out,
            "turn {turn}: {few:.0} ns at 4 nodes, {many:.0} ns at 1,000: {:.2}",
            many / few
        )?;
        ratios.push(many / few);
    }
    ratios.sort_by(f64::total_cmp);
    writeln!(out, "median {:.2}", ratios[TURNS / 2])
}

fn measured(nodes: u32, functions: u32, seconds: f64) -> Cost {
    let mut spec = generate::preset("torpor-node").expect("a preset").spec();
    spec.functions = functions * nodes;
    (spec.warm_up_s, spec.counted_s) = (1.0, seconds);
    let mut settings = RuleName::Adaptive.settings();
    settings.nodes = nodes;
    let counted = CountedSpan {
        from: Time::ZERO.after(Span::from_secs(1)),
        to: Time::ZERO.after(spec.length()),
        keep: 0,
    };
    let streams = Streams::new(&spec.experiment, spec.seed);
    let begun = taken();
    let made = generate::generate(&spec).expect("a spec of ours");
    let mut before = None;
    let workload = simulator::traces::Workload {
        functions: made.functions,
        arrivals: made.arrivals.inspect(|_| {
            // The first arrival is requested when the set-up is complete.
            if before.is_none() {
                before = Some(taken());
            }
        }),
    };
    let hardware = Hardware::torpor();
    let outcome = run(
        &hardware,
        &settings,
        workload,
        counted,
        &streams,
        &mut |_, _| true,
    )
    .expect("a run of ours");
    Cost {
        outcome,
        before: before.unwrap_or(begun) - begun,
        all: taken() - begun,
    }
}

/// Returns the processor time of this process, in nanoseconds.
fn taken() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|own| own.parse().ok()).unwrap_or_default()
}

fn line(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

/// Returns a hash of the results (FNV-1a over all counts).
fn digest(outcome: &Outcome) -> u64 {
    let functions = outcome.functions.iter().flat_map(|own| {
        [
            own.requests,
            own.late,
            own.loads,
            own.refused,
            own.charged.0,
        ]
    });
    let nodes = outcome.nodes.iter().flat_map(|own| {
        let each = own.busy.iter().chain(&own.loading).map(|span| span.0);
        let steps = own
            .latencies
            .iter()
            .flat_map(simulator::statistics::Histogram::steps);
        each.chain([own.evictions, own.host_loads, own.link_loads, own.resident])
            .chain(steps.flat_map(|(at, count)| [at.0, count]))
    });
    functions
        .chain(nodes)
        .chain([outcome.events, outcome.in_flight_max])
        .fold(0xCBF2_9CE4_8422_2325, |hash, value| {
            (hash ^ value).wrapping_mul(0x0100_0000_01B3)
        })
}
