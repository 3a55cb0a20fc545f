//! What the papers say, and whether it comes out here.
//!
//! Each claim has its rule before any run is made (`claims.toml`), so that a result cannot choose its measure:
//!
//! | [`Rule`] | holds when |
//! |---|---|
//! | value | the 95 % interval of ours meets the paper's value ± 10 % |
//! | bound | the relation holds at the interval's worse end |
//! | order | the relation holds in at least nine of ten seeds, of ten at least |
//! | structural | the relation holds exactly; counted apart, never in the headline |
//!
//! A claim that fails is *missed*, unless a second run under the same seeds, in which exactly one parameter is
//! another, brings it in: then it is *explained* by that parameter. Structural claims are never explained.

mod judge;
mod table;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::statistics::Unit;

pub use judge::{Evidence, JudgeError, Row, Run, Verdict};
pub use table::{Headline, Judged};

/// Which paper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Paper {
    /// HPDC 2025.
    FluidFaaS,
    /// USENIX ATC 2025.
    Torpor,
    /// SIGMETRICS 2025.
    Granularity,
    /// ICPP 2023.
    #[serde(rename = "FaST-GShare")]
    FastGShare,
}

impl Paper {
    /// As it calls itself.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FluidFaaS => "FluidFaaS",
            Self::Torpor => "Torpor",
            Self::Granularity => "Granularity",
            Self::FastGShare => "FaST-GShare",
        }
    }
}

/// How ours is said to stand to the paper's value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// It is the value.
    Equal,
    /// It is near the value.
    About,
    /// It is the value or more.
    AtLeast,
    /// It is the value or less.
    AtMost,
    /// The value is the most that was reached.
    UpTo,
    /// It is less than the value.
    Less,
    /// It has this place.
    Rank,
    /// 1: it holds.
    Holds,
}

impl Relation {
    /// Whether one number stands so to the paper's, exactly.
    #[must_use]
    pub fn holds(self, ours: f64, paper: f64) -> bool {
        match self {
            Self::Equal | Self::About | Self::Rank | Self::Holds => ours == paper,
            Self::AtLeast => ours >= paper,
            Self::AtMost | Self::UpTo => ours <= paper,
            Self::Less => ours < paper,
        }
    }

    /// As a sign before the value; empty for equality.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Equal | Self::Rank | Self::Holds => "",
            Self::About => "about ",
            Self::AtLeast => "≥ ",
            Self::AtMost => "≤ ",
            Self::UpTo => "up to ",
            Self::Less => "< ",
        }
    }
}

/// What must be so for a claim to be reproduced; see the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The interval meets the value ± 10 %.
    Value,
    /// The relation holds at the worse end.
    Bound,
    /// The relation holds in nine of ten seeds.
    Order,
    /// The relation holds exactly.
    Structural,
}

impl Rule {
    const fn fits(self, relation: Relation) -> bool {
        match self {
            Self::Value => matches!(relation, Relation::Equal | Relation::About),
            Self::Bound => matches!(relation, Relation::AtLeast | Relation::AtMost),
            Self::Order => {
                matches!(relation, Relation::Less | Relation::Rank | Relation::Holds)
            }
            Self::Structural => matches!(relation, Relation::Equal | Relation::UpTo),
        }
    }

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Bound => "bound",
            Self::Order => "order",
            Self::Structural => "structural",
        }
    }
}

/// One sentence of a paper, as a number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// As in the papers' data: T01, S06.
    pub id: String,
    /// Whose.
    pub paper: Paper,
    /// Section, table or figure.
    #[serde(rename = "where")]
    pub place: String,
    /// What the number of a seed is.
    pub metric: String,
    /// What it counts.
    pub unit: Unit,
    /// How ours is said to stand to the value.
    pub relation: Relation,
    /// The paper's value, in the unit.
    pub value: f64,
    /// Settled before any run.
    pub rule: Rule,
    /// What to know beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Claims in the order of their file.
#[derive(Clone, PartialEq, Debug)]
pub struct Claims {
    claims: Vec<Claim>,
}

/// What is wrong with a file of claims.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ClaimsError {
    /// It is not such a file.
    #[error("claims: {0}")]
    Parse(#[from] toml::de::Error),
    /// Two claims of one name.
    #[error("claim {0} is there twice")]
    Twice(String),
    /// A rule that cannot judge the relation.
    #[error("claim {id}: rule {rule:?} does not judge {relation:?}")]
    Rule {
        /// The claim.
        id: String,
        /// Its rule.
        rule: Rule,
        /// Its relation.
        relation: Relation,
    },
    /// A value without a band around it, or none at all.
    #[error("claim {0}: the value must be finite, and above zero for the rule value")]
    Value(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claim: Vec<Claim>,
}

impl Claims {
    /// Those of the papers that virtual time can show.
    ///
    /// # Panics
    ///
    /// Never: a test reads the same bytes.
    #[must_use]
    pub fn of_papers() -> Self {
        #[expect(clippy::expect_used, reason = "the file is a part of the program")]
        Self::parse(include_str!("../claims.toml")).expect("the file is tested")
    }

    /// From the text of such a file.
    ///
    /// # Errors
    ///
    /// Unknown words, an id twice, a rule that does not fit the relation, a value that cannot be judged by it.
    pub fn parse(text: &str) -> Result<Self, ClaimsError> {
        let File { claim: claims } = toml::from_str(text)?;
        let mut seen = BTreeSet::new();
        for claim in &claims {
            let id = || claim.id.clone();
            if !seen.insert(claim.id.as_str()) {
                return Err(ClaimsError::Twice(id()));
            }
            let (rule, relation) = (claim.rule, claim.relation);
            if !rule.fits(relation) {
                let id = id();
                return Err(ClaimsError::Rule { id, rule, relation });
            }
            if !claim.value.is_finite() || (rule == Rule::Value && claim.value <= 0.0) {
                return Err(ClaimsError::Value(id()));
            }
        }
        Ok(Self { claims })
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Claim> {
        self.claims.iter()
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }
}

impl Claim {
    /// The paper's value with its relation and unit: "≥ 80.0 %".
    #[must_use]
    pub fn said(&self) -> String {
        format!("{}{}", self.relation.sign(), self.unit.write(self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[claim]]\nid = \"X1\"\npaper = \"FaST-GShare\"\nwhere = \"§1\"\nmetric = \"m\"\nunit = \"percent\"\n";

    fn one(rest: &str) -> Result<Claims, ClaimsError> {
        Claims::parse(&format!("{ONE}{rest}"))
    }

    #[test]
    fn the_papers_claims_are_all_there() {
        let claims = Claims::of_papers();
        let ids: Vec<_> = claims.iter().map(|claim| claim.id.as_str()).collect();
        let expected = [
            "T01",
            "T02",
            "T03",
            "T04",
            "T05",
            "T06",
            "T07",
            "T07-block",
            "T08",
            "T09",
            "T10",
            "T11",
            "T22",
            "T24",
            "T25",
            "T26",
            "T27",
            "T39",
            "S06",
            "S07",
            "S10",
            "S11",
            "S14",
            "S17",
        ];
        assert_eq!(ids, expected);
        let structural = claims.iter().filter(|claim| claim.rule == Rule::Structural);
        let structural: Vec<_> = structural.map(|claim| claim.id.as_str()).collect();
        assert_eq!(structural, ["T04", "T25", "S06", "S10", "S11"]);
        let said = |id| claims.get(id).unwrap().said();
        assert_eq!(said("T02"), "≥ 80.0 %");
        assert_eq!(said("T10"), "about 35 ms");
        assert_eq!(said("S10"), "9,282 MB");
        assert!(claims.get("T99").is_none());
    }

    #[test]
    fn a_rule_must_fit_its_relation() {
        assert!(one("relation = \"at-least\"\nvalue = 80\nrule = \"bound\"").is_ok());
        let wrong = one("relation = \"at-least\"\nvalue = 80\nrule = \"value\"");
        assert!(matches!(wrong, Err(ClaimsError::Rule { .. })));
        let nothing = one("relation = \"equal\"\nvalue = 0\nrule = \"value\"");
        assert_eq!(nothing, Err(ClaimsError::Value("X1".to_owned())));
        let endless = one("relation = \"at-least\"\nvalue = inf\nrule = \"bound\"");
        assert_eq!(endless, Err(ClaimsError::Value("X1".to_owned())));
    }

    #[test]
    fn unknown_words_and_names_twice_are_refused() {
        let rest = "relation = \"less\"\nvalue = 0\nrule = \"order\"\n";
        assert!(one(rest).is_ok());
        assert!(matches!(
            one(&format!("{rest}tolerance = 0.5")),
            Err(ClaimsError::Parse(_))
        ));
        assert_eq!(
            one(&format!("{rest}{ONE}{rest}")),
            Err(ClaimsError::Twice("X1".to_owned()))
        );
    }
}
