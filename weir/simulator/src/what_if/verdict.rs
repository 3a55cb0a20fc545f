//! The answer: one sentence for each rule, shown before the evidence.
//!
//! **Criterion.** A point is *yes* if each function's percentile is kept at the lower end of the 95 % interval of its
//! attainment over seeds. It is *probably* if no function misses its percentile even at the upper end, but some are undecided:
//! their interval contains the percentile, so more seeds may decide. In addition, nine of ten functions must be sure, or all
//! undecided ones must keep their percentile on average. Otherwise it is *no*.
//!
//! **One value.** Of the swept values one is given as the answer: the least that is yes; if there is none, the least that is
//! probably; if there is none, the one nearest to it ([`Answer::order`]). The page and the tables show the same one.

mod next;

use serde::Serialize;

use super::answer::{Answer, Outcome};
use super::limit::Limit;
use super::sweep::Axis;
use super::table::value;
use crate::statistics::Unit;

/// Origin of the arrivals of the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Rows of the trace: the same in every seed.
    Fixed,
    /// Drawn by each seed: from counts, or for a synthetic workload.
    Drawn,
}

impl Arrivals {
    /// Returns a remark on the meaning of the intervals.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Fixed => {
                "The trace fixes the arrivals, so seeds differ only in noise: intervals do not cover days busier than its own."
            }
            Self::Drawn => "Each seed draws arrivals of its own.",
        }
    }
}

/// Answer to a what-if question for one sharing rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Name of the rule.
    pub rule: &'static str,
    /// Whether every function keeps its objective at [`value`](Self::value), with the confidence that the seeds allow.
    pub outcome: Outcome,
    /// Whether `outcome` is [`Outcome::Yes`].
    pub holds: bool,
    /// Value given as the answer: of those that are yes, else probably, the largest for `rate-scale`, the least for
    /// other axes; the number of GPUs for a single run. `None` where all are no.
    pub value: Option<f64>,
    /// Number of all GPUs at that value; `None` where all are no.
    pub gpus: Option<u32>,
    /// Cost of these GPUs for an hour; `None` without a price or where all are no.
    pub cost_per_hour: Option<f64>,
    /// Binding limit: one step short of the value given as the answer, or at the value nearest to holding.
    pub binds: Limit,
    /// The answer in a sentence.
    pub sentence: String,
    /// Explanation of the limit one step short, and of what makes the answer less certain; may be empty.
    pub more: String,
    /// Options of a further command that would decide what is open; may be empty.
    pub next: String,
}

/// Returns the answer for each rule, in the order in which they were run. `axis` is the value that was swept, if any.
#[must_use]
pub fn verdicts(answers: &[Answer], axis: Option<Axis>) -> Vec<Verdict> {
    let mut rules: Vec<&'static str> = Vec::new();
    for own in answers {
        if !rules.contains(&own.rule) {
            rules.push(own.rule);
        }
    }
    let several = rules.len() > 1;
    let of_rule = |rule: &&'static str| {
        let own: Vec<&Answer> = answers.iter().filter(|own| own.rule == *rule).collect();
        let mut verdict = of(&own, axis);
        if several {
            verdict.sentence = format!("{rule}: {}", verdict.sentence);
        }
        verdict
    };
    rules.iter().map(of_rule).collect()
}

/// Returns the answer for a rule's runs, at least one, ordered by rising value.
fn of(answers: &[&Answer], axis: Option<Axis>) -> Verdict {
    let whole: Vec<&Answer> = answers.iter().copied().filter(|own| !own.stopped).collect();
    // Stopped runs are ignored if there are complete ones.
    let answers = if whole.is_empty() { answers } else { &whole };
    let Some(at) = (0..answers.len()).min_by(|&one, &other| answers[one].order(answers[other]))
    else {
        unreachable!("every rule has runs");
    };
    let shown = answers[at];
    let outcome = shown.outcome();
    // The neighbouring value, one step short of enough.
    let short = match axis {
        _ if outcome == Outcome::No => None,
        None => None,
        Some(Axis::RateScale) => answers.get(at + 1).copied(),
        Some(_) => at.checked_sub(1).and_then(|at| answers.get(at)).copied(),
    };
    let (sentence, more) = match (axis, outcome) {
        _ if shown.stopped => (
            "No answer: stopped before the end of the first run.".to_owned(),
            String::new(),
        ),
        (None, _) => single(shown),
        (Some(axis), Outcome::Yes) => enough(answers, axis, shown, short),
        (Some(axis), Outcome::Probably) => perhaps(answers, axis, shown, short),
        (Some(axis), Outcome::No) => never(answers, axis, shown),
    };
    let next = if shown.stopped {
        String::new()
    } else {
        next::options(answers, axis, at)
    };
    let is_answered = outcome != Outcome::No && !shown.stopped;
    Verdict {
        rule: shown.rule,
        outcome,
        holds: shown.holds(),
        value: is_answered.then(|| value(shown, axis)),
        gpus: is_answered.then_some(shown.gpus),
        cost_per_hour: shown.cost_per_hour.filter(|_| is_answered),
        binds: short.unwrap_or(shown).binding.limit,
        sentence,
        more: join(&[&more, &next::sentence(&next)]),
        next,
    }
}

/// Joins sentences with spaces, without empty ones.
fn join(sentences: &[&str]) -> String {
    let each = sentences.iter().map(|own| own.trim());
    let each: Vec<&str> = each.filter(|own| !own.is_empty()).collect();
    each.join(" ")
}

fn single(own: &Answer) -> (String, String) {
    match own.outcome() {
        Outcome::Yes => {
            let sentence = format!(
                "Yes: {} {} {}{}.",
                gpus(own),
                if own.gpus == 1 { "meets" } else { "meet" },
                all_objectives(own),
                costs(own),
            );
            let busy = Unit::Share.write(own.gpu_busy.mean);
            (sentence, format!("GPUs are busy {busy} of the time."))
        }
        Outcome::Probably => (
            format!(
                "Probably: with {}, {}{}.",
                gpus(own),
                undecided(own),
                costs(own)
            ),
            String::new(),
        ),
        Outcome::No => {
            let sentence = format!(
                "No: {} {} not meet every objective; the binding limit is {}.",
                gpus(own),
                if own.gpus == 1 { "does" } else { "do" },
                own.binding.limit.name(),
            );
            (sentence, join(&[&own.binding.sentence, &open(own)]))
        }
    }
}

fn range(answers: &[&Answer], axis: Axis) -> String {
    match answers {
        [first, .., last] => format!("{} to {}", plain(first, axis), plain(last, axis)),
        [one] => plain(one, axis),
        [] => String::new(),
    }
}

/// Returns the texts for an axis of which no value is enough.
fn never(answers: &[&Answer], axis: Axis, shown: &Answer) -> (String, String) {
    let sentence = format!(
        "No: none of {} ({}) meets every objective; the binding limit is {}.",
        range(answers, axis),
        axis.title(),
        shown.binding.limit.name(),
    );
    let nearest = format!(
        "The nearest is {}, with {} of {} functions that keep their objective and {} of requests in time:",
        named(shown, axis),
        shown.functions_keeping,
        shown.functions_called,
        Unit::Share.write(shown.attainment.mean),
    );
    (
        sentence,
        join(&[&nearest, &shown.binding.sentence, &open(shown)]),
    )
}

/// Returns the texts for an axis of which a value is probably enough, but none is sure.
fn perhaps(
    answers: &[&Answer],
    axis: Axis,
    best: &Answer,
    short: Option<&Answer>,
) -> (String, String) {
    let sentence = format!(
        "Probably {}: {}{}; none of {} is sure.",
        named(best, axis),
        undecided(best),
        costs(best),
        range(answers, axis),
    );
    (
        sentence,
        short.map_or_else(String::new, |short| below(short, axis)),
    )
}

/// Returns the limit one step short of the answer, in sentences.
fn below(short: &Answer, axis: Axis) -> String {
    let what = format!(
        "With {} the binding limit is {}:",
        named(short, axis),
        short.binding.limit.name()
    );
    join(&[&what, &short.binding.sentence, &open(short)])
}

fn enough(
    answers: &[&Answer],
    axis: Axis,
    best: &Answer,
    short: Option<&Answer>,
) -> (String, String) {
    let is_counted = matches!(axis, Axis::Gpus | Axis::Nodes);
    let which = match axis {
        Axis::RateScale => "the highest",
        Axis::Gpus | Axis::Nodes => "the fewest",
        Axis::ModelsGb | Axis::HostGbPerS => "the least",
    };
    let sentence = format!(
        "{} {} {}{}; {which} of {}.",
        capital(&named(best, axis)),
        if best.gpus > 1 && is_counted {
            "meet"
        } else {
            "meets"
        },
        all_objectives(best),
        costs(best),
        range(answers, axis),
    );
    let mut more = match short {
        Some(short) if short.outcome() == Outcome::Probably => format!(
            "{} probably {} as well: {}.",
            capital(&named(short, axis)),
            if short.gpus > 1 && is_counted {
                "do"
            } else {
                "does"
            },
            undecided(short),
        ),
        Some(short) => below(short, axis),
        None if axis == Axis::RateScale => "Higher values were not tried.".to_owned(),
        None if is_counted && best.gpus == 1 => String::new(),
        None => "Lower values were not tried.".to_owned(),
    };
    let at = value(best, Some(axis));
    let is_odd = |own: &&&Answer| {
        let own_at = value(own, Some(axis));
        let beyond = if axis == Axis::RateScale {
            own_at < at
        } else {
            own_at > at
        };
        beyond && !own.holds()
    };
    if let Some(odd) = answers.iter().find(is_odd) {
        let does = if is_counted { "do" } else { "does" };
        more.push_str(&format!(
            " However, {} {does} not, so this is close to the limit.",
            named(odd, axis)
        ));
    }
    (sentence, more)
}

/// Returns "376 of 380 functions are sure to keep their objectives, 4 are undecided".
fn undecided(own: &Answer) -> String {
    if own.functions_called == 1 {
        return "whether the function keeps its objective is undecided: the interval over seeds contains its percentile".to_owned();
    }
    let (are, open) = match own.functions_undecided {
        1 => ("is", "1".to_owned()),
        many => ("are", many.to_string()),
    };
    format!(
        "{} of {} functions are sure to keep their objectives, {open} {are} undecided",
        own.functions_keeping, own.functions_called
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|own| own.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn plain(own: &Answer, axis: Axis) -> String {
    // As the user wrote it.
    value(own, Some(axis)).to_string()
}

fn gpus(own: &Answer) -> String {
    let gpus = Unit::Gpus.write(f64::from(own.gpus));
    if own.nodes > 1 {
        format!("{gpus} ({} nodes of {})", own.nodes, own.gpus_per_node)
    } else {
        gpus
    }
}

/// Describes a point by its value on the swept axis.
fn named(own: &Answer, axis: Axis) -> String {
    match axis {
        Axis::Gpus | Axis::Nodes => gpus(own),
        Axis::ModelsGb => format!("{} GB of each GPU for models", plain(own, axis)),
        Axis::HostGbPerS => format!("a link of {} GB/s", plain(own, axis)),
        Axis::RateScale => format!("{} times the trace's rate", plain(own, axis)),
    }
}

fn all_objectives(own: &Answer) -> String {
    let (functions, each) = match own.functions_called {
        1 => ("the function's objective".to_owned(), ""),
        many => (format!("the objectives of all {many} functions"), "each "),
    };
    if own.seeds > 1 {
        format!(
            "{functions}, {each}at the worse end of its 95 % interval over {} seeds",
            own.seeds
        )
    } else {
        format!("{functions} under one seed, which has no interval")
    }
}

fn costs(own: &Answer) -> String {
    own.cost_per_hour
        .map_or_else(String::new, |hour| format!(", for {hour:.2} an hour"))
}

/// Returns a remark on functions that miss and for which more seeds may decide.
fn open(own: &Answer) -> String {
    let count = own.functions_undecided;
    if count == 0 || own.seeds < 2 {
        return String::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let functions = Unit::Functions.write(count as f64);
    format!(
        "Of those that miss, {functions} may keep their objectives: only the lower end of the interval is below the percentile."
    )
}
