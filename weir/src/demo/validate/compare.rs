//! Rule for the agreement of simulated and live figures, fixed before any measurement: a simulated figure may differ by a stated
//! amount, or by as much as live rounds of the same load differ from each other, whichever is greater.

use serde::Serialize;

/// Allowed difference of a figure, however small the spread of rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    /// Absolute, in the figure's own unit.
    Units(f64),
    /// Relative to the live mean.
    Part(f64),
}

/// A live figure and its simulated counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Compared {
    /// Mean of the rounds.
    pub(super) live: f64,
    /// Largest minus smallest of the rounds.
    pub(super) spread: f64,
    pub(super) simulated: f64,
    /// Simulated minus live mean.
    pub(super) difference: f64,
    pub(super) allowed: f64,
    pub(super) holds: bool,
}

/// Compares a figure; `None` if there is no round, or a round or the simulation lacks the figure.
pub(super) fn compared(
    rounds: &[Option<f64>],
    simulated: Option<f64>,
    bound: Bound,
) -> Option<Compared> {
    let rounds: Vec<f64> = rounds.iter().copied().collect::<Option<_>>()?;
    let simulated = simulated?;
    let live = mean(&rounds)?;
    let spread = spread(&rounds);
    let stated = match bound {
        Bound::Units(units) => units,
        Bound::Part(part) => part * live.abs(),
    };
    let (difference, allowed) = (simulated - live, stated.max(spread));
    Some(Compared {
        live,
        spread,
        simulated,
        difference,
        allowed,
        holds: difference.abs() <= allowed,
    })
}

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few rounds")]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)
}

fn spread(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    (largest - smallest).max(0.0)
}

/// Whether the simulation ranks two cases in the same order as the live rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ranking {
    Same,
    Other,
    /// The live means differ by no more than the spread of rounds: there is no order to keep.
    Open,
}

/// Compares the order of two cases by one figure.
pub(super) fn ranking(one: &Compared, other: &Compared) -> Ranking {
    let live = one.live - other.live;
    if live.abs() <= one.spread.max(other.spread) {
        return Ranking::Open;
    }
    let simulated = one.simulated - other.simulated;
    if simulated != 0.0 && (simulated > 0.0) == (live > 0.0) {
        Ranking::Same
    } else {
        Ranking::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rounds: &[f64], simulated: f64, bound: Bound) -> Compared {
        let rounds: Vec<_> = rounds.iter().copied().map(Some).collect();
        compared(&rounds, Some(simulated), bound).unwrap()
    }

    #[test]
    fn the_greater_of_bound_and_spread_is_allowed() {
        let near = of(&[60.0, 61.0, 62.0], 63.5, Bound::Units(3.0));
        assert_eq!((near.live, near.spread, near.allowed), (61.0, 2.0, 3.0));
        assert!(near.holds && !of(&[60.0, 61.0, 62.0], 64.5, Bound::Units(3.0)).holds);
        let wide = of(&[50.0, 61.0, 62.0, 67.0], 74.0, Bound::Units(3.0));
        assert_eq!((wide.spread, wide.holds), (17.0, true));
        let part = of(&[200.0, 200.0], 170.0, Bound::Part(0.15));
        assert_eq!(
            (part.allowed, part.difference, part.holds),
            (30.0, -30.0, true)
        );
        assert!(!of(&[200.0, 200.0], 169.0, Bound::Part(0.15)).holds);
        // One round has no spread.
        assert!(of(&[5.0], 5.0, Bound::Units(0.0)).holds);
    }

    #[test]
    fn missing_figures_are_not_compared() {
        let bound = Bound::Units(1.0);
        assert_eq!(compared(&[], Some(1.0), bound), None);
        assert_eq!(compared(&[Some(1.0), None], Some(1.0), bound), None);
        assert_eq!(compared(&[Some(1.0)], None, bound), None);
    }

    #[test]
    fn an_order_is_same_reversed_or_open() {
        let bound = Bound::Units(3.0);
        let low = of(&[40.0, 42.0], 43.0, bound);
        let high = of(&[70.0, 71.0], 69.0, bound);
        assert_eq!(ranking(&low, &high), Ranking::Same);
        assert_eq!(ranking(&high, &low), Ranking::Same);
        let wrong = of(&[70.0, 71.0], 42.0, bound);
        assert_eq!(ranking(&low, &wrong), Ranking::Other);
        // Equal simulated figures are no order.
        assert_eq!(
            ranking(&low, &of(&[70.0, 71.0], 43.0, bound)),
            Ranking::Other
        );
        assert_eq!(
            ranking(&low, &of(&[41.0, 44.0], 20.0, bound)),
            Ranking::Open
        );
    }
}
