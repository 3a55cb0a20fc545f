//! Analysis of PromQL queries: which series they read by which function; and queries without filters.

use promql_parser::label::MatchOp;
use promql_parser::parser::token::{T_EQLC, T_GTE, T_GTR, T_LSS, T_LTE, T_NEQ, TokenType};
use promql_parser::parser::{BinaryExpr, Expr, VectorSelector, parse};

/// A selector of series in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The metric's name; empty if a matcher of `__name__` replaces it.
    pub name: String,
    /// Label names and values of the selector's matchers.
    pub matchers: Vec<(String, String)>,
    /// Function that reads the range of the selector; `None` for an instant selector.
    pub function: Option<&'static str>,
}

/// Returns a query with Grafana's variables replaced, so that it can be parsed: intervals by `interval`, others by
/// `.*`.
#[must_use]
pub fn with_variables(query: &str, interval: &str) -> String {
    let mut text = query.to_owned();
    for name in ["$__rate_interval", "$__range", "$__interval"] {
        text = text.replace(name, interval);
    }
    let mut filled = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('$') {
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let end = after
            .find(|character| !is_name(character))
            .unwrap_or(after.len());
        // An exact match must become a regular expression to match all values.
        let before = before
            .strip_suffix("=\"")
            .map_or_else(|| before.to_owned(), |own| format!("{own}=~\""));
        filled.push_str(&before);
        filled.push_str(".*");
        rest = &after[end..];
    }
    filled.push_str(rest);
    filled
}

/// Returns the selectors of a query without variables.
///
/// # Errors
///
/// Fails if the query cannot be parsed.
pub fn selectors(query: &str) -> Result<Vec<Selector>, String> {
    let mut found = Vec::new();
    walk(&parse(query)?, None, &mut found);
    Ok(found)
}

fn walk(expr: &Expr, function: Option<&'static str>, found: &mut Vec<Selector>) {
    match expr {
        Expr::Aggregate(own) => {
            walk(&own.expr, None, found);
            if let Some(parameter) = &own.param {
                walk(parameter, None, found);
            }
        }
        Expr::Unary(own) => walk(&own.expr, None, found),
        Expr::Binary(own) => {
            walk(&own.lhs, None, found);
            walk(&own.rhs, None, found);
        }
        Expr::Paren(own) => walk(&own.expr, function, found),
        Expr::Subquery(own) => walk(&own.expr, function, found),
        Expr::VectorSelector(own) => found.push(selector(own, None)),
        Expr::MatrixSelector(own) => found.push(selector(&own.vs, function)),
        Expr::Call(own) => {
            for argument in &own.args.args {
                walk(argument, Some(own.func.name), found);
            }
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

fn selector(own: &VectorSelector, function: Option<&'static str>) -> Selector {
    let matchers = own.matchers.matchers.iter();
    let exact = matchers
        .clone()
        .find(|matcher| matcher.name == "__name__" && matcher.op == MatchOp::Equal);
    let name = own
        .name
        .clone()
        .or_else(|| exact.map(|matcher| matcher.value.clone()));
    Selector {
        name: name.unwrap_or_default(),
        matchers: matchers
            .map(|matcher| (matcher.name.clone(), matcher.value.clone()))
            .collect(),
        function,
    }
}

/// Returns a query without its filters: each filtering comparison is replaced by its left side, and `absent(x)` by `x`.
/// The result has series wherever the metrics of the query exist.
///
/// # Errors
///
/// Fails if the query cannot be parsed.
pub fn without_filters(query: &str) -> Result<String, String> {
    let mut expr = parse(query)?;
    strip(&mut expr);
    Ok(expr.to_string())
}

fn strip(expr: &mut Expr) {
    loop {
        let inner = match expr {
            Expr::Binary(own) if own.op.is_comparison_operator() && !own.return_bool() => {
                (*own.lhs).clone()
            }
            Expr::Call(own) if own.func.name == "absent" => match own.args.args.first() {
                Some(argument) => (**argument).clone(),
                None => return,
            },
            _ => break,
        };
        *expr = inner;
    }
    each(expr, &mut |inner| strip(inner));
}

fn each(expr: &mut Expr, run: &mut dyn FnMut(&mut Expr)) {
    match expr {
        Expr::Aggregate(own) => run(&mut own.expr),
        Expr::Unary(own) => run(&mut own.expr),
        Expr::Binary(own) => {
            run(&mut own.lhs);
            run(&mut own.rhs);
        }
        Expr::Paren(own) => run(&mut own.expr),
        Expr::Subquery(own) => run(&mut own.expr),
        Expr::Call(own) => {
            for argument in &mut own.args.args {
                run(argument);
            }
        }
        Expr::VectorSelector(_)
        | Expr::MatrixSelector(_)
        | Expr::NumberLiteral(_)
        | Expr::StringLiteral(_)
        | Expr::Extension(_) => {}
    }
}

/// Returns variants of the query with one change each: every comparison inverted, and every number compared with
/// increased and decreased, by a half or, where it is 0, by 1. They show whether the tests of a query detect changes.
///
/// # Errors
///
/// Fails if the query cannot be parsed.
pub fn mutants(query: &str) -> Result<Vec<String>, String> {
    let expr = parse(query)?;
    let mut all = Vec::new();
    // `place` is the number of a comparison in the order of the traversal; the loop ends after the last comparison.
    for place in 0.. {
        let mut is_there = false;
        for change in [Change::Turn, Change::Larger, Change::Smaller] {
            let (mut own, mut count) = (expr.clone(), 0);
            is_there |= mutate(&mut own, place, &mut count, change);
            let text = own.to_string();
            if text != expr.to_string() {
                all.push(text);
            }
        }
        if !is_there {
            return Ok(all);
        }
    }
    Ok(all)
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Turn,
    Larger,
    Smaller,
}

/// Changes the comparison at this position. Returns whether it exists.
fn mutate(expr: &mut Expr, place: usize, count: &mut usize, change: Change) -> bool {
    if let Expr::Binary(own) = expr
        && own.op.is_comparison_operator()
    {
        if *count == place {
            alter(own, change);
            return true;
        }
        *count += 1;
    }
    let mut is_there = false;
    each(expr, &mut |inner| {
        is_there = is_there || mutate(inner, place, count, change)
    });
    is_there
}

fn alter(own: &mut BinaryExpr, change: Change) {
    let factor = match change {
        Change::Turn => {
            own.op = TokenType::new(match own.op.id() {
                T_GTR => T_LTE,
                T_GTE => T_LSS,
                T_LSS => T_GTE,
                T_LTE => T_GTR,
                T_EQLC => T_NEQ,
                _ => T_EQLC,
            });
            return;
        }
        Change::Larger => 1.5,
        Change::Smaller => 0.5,
    };
    if let Expr::NumberLiteral(number) = &mut *own.rhs {
        let is_zero = number.val == 0.0;
        number.val = if is_zero {
            factor * 2.0 - 2.0
        } else {
            number.val * factor
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_so_that_a_query_can_be_parsed() {
        let query = "rate(a_total{b=\"$b\",c=~\"$c\",d=\"e\"}[$__rate_interval])";
        let filled = with_variables(query, "5m");
        assert_eq!(filled, "rate(a_total{b=~\".*\",c=~\".*\",d=\"e\"}[5m])");
        assert!(parse(&filled).is_ok());
    }

    #[test]
    fn each_selector_has_the_function_that_reads_it() {
        let found = selectors("sum(rate(a_total{x=\"y\"}[5m])) / (b > 0) or c and topk(3, d)");
        let found = found.unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|own| (own.name.as_str(), own.function))
            .collect();
        assert_eq!(
            names,
            [
                ("a_total", Some("rate")),
                ("b", None),
                ("c", None),
                ("d", None)
            ]
        );
        assert_eq!(found[0].matchers, [("x".to_owned(), "y".to_owned())]);
        assert!(selectors("rate(a[5m)").is_err());
    }

    #[test]
    fn without_filters_the_compared_operands_remain() {
        for (query, left) in [
            ("a > 1", "a"),
            (
                "(a / b > 0.1) and on (x) (b >= 100)",
                "(a / b) and on (x) (b)",
            ),
            ("absent(up{job=\"x\"}) or absent(y)", "up{job=\"x\"} or y"),
            ("sum(a) < bool 1", "sum(a) < bool 1"),
        ] {
            let expected = parse(left).unwrap().to_string();
            assert_eq!(without_filters(query).unwrap(), expected);
        }
    }

    #[test]
    fn mutants_change_one_comparison_or_number_each() {
        let all = mutants("(a > 2) and (b <= 0)").unwrap();
        let expected = [
            "(a <= 2) and (b <= 0)",
            "(a > 3) and (b <= 0)",
            "(a > 1) and (b <= 0)",
            "(a > 2) and (b > 0)",
            "(a > 2) and (b <= 1)",
            "(a > 2) and (b <= -1)",
        ];
        assert_eq!(all, expected);
        assert_eq!(mutants("a").unwrap(), [""; 0]);
    }
}
