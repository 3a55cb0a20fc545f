//! Cost of finding the best plan of a case. It grows exponentially with the number of requests, so this shows which cases can
//! be solved by the hundred. The cases are those of seeds 0 to 15, one after the other.

use divan::{Bencher, black_box};
use experiments::optimum::{DrawnCase, Objective, Settings, draw, solve};
use simulator::statistics::Percentile;

fn main() {
    divan::main();
}

const REQUESTS: [usize; 4] = [8, 12, 16, 20];

fn best(bencher: Bencher<'_, '_>, requests: usize, objective: Objective) {
    let settings = Settings {
        requests,
        ..Settings::torpor(1.0)
    };
    let cases: Vec<DrawnCase> = (0..16)
        .map(|seed| draw(&settings, seed).expect("the settings are valid"))
        .collect();
    let mut turns = cases.iter().cycle();
    bencher.bench_local(|| {
        let drawn = turns.next().expect("a cycle has no end");
        solve(black_box(&drawn.case), objective, settings.states_max)
    });
}

#[divan::bench(args = REQUESTS)]
fn most_requests(bencher: Bencher<'_, '_>, requests: usize) {
    best(bencher, requests, Objective::RequestsInTime);
}

#[divan::bench(args = REQUESTS)]
fn most_functions(bencher: Bencher<'_, '_>, requests: usize) {
    let objective = Objective::FunctionsCompliant(Percentile::P98);
    best(bencher, requests, objective);
}
