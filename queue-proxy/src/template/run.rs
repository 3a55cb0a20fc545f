//! Running a template on a request.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;

use super::value::{Record, RevisionInfo, Subject, Value};
use super::{Command, Function, Node, Operand, Pipeline, Template};

/// A template that cannot be run on a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RunError {
    /// A value has no field or method of this name.
    #[error("there is no field or method {0}")]
    NoField(String),
    /// A function or method with a wrong number or kind of arguments.
    #[error("wrong arguments for {0}")]
    Arguments(&'static str),
    /// Values that cannot be compared.
    #[error("incompatible types for comparison")]
    Comparison,
    /// A value that cannot be written.
    #[error("a structure cannot be written; one of its fields can")]
    Structure,
}

impl Template {
    /// What the template says of a request.
    ///
    /// # Errors
    /// A field that does not exist, or wrong arguments.
    pub(crate) fn run(&self, record: &Record, revision: &RevisionInfo) -> Result<String, RunError> {
        let mut out = String::with_capacity(512);
        Subject { record, revision }.nodes(&self.nodes, &mut out)?;
        Ok(out)
    }
}

impl<'a> Subject<'a> {
    fn nodes(self, nodes: &'a [Node], out: &mut String) -> Result<(), RunError> {
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Output(pipeline) => {
                    let value = self.pipeline(pipeline)?;
                    if !self.write(&value, out) {
                        return Err(RunError::Structure);
                    }
                }
                Node::If(branches, otherwise) => {
                    let mut chosen = otherwise;
                    for (condition, guarded) in branches {
                        if self.is_true(&self.pipeline(condition)?) {
                            chosen = guarded;
                            break;
                        }
                    }
                    self.nodes(chosen, out)?;
                }
            }
        }
        Ok(())
    }

    fn pipeline(self, pipeline: &'a Pipeline) -> Result<Value<'a>, RunError> {
        let mut piped = None;
        for command in &pipeline.0 {
            piped = Some(self.command(command, piped)?);
        }
        Ok(piped.unwrap_or(Value::Nil))
    }

    fn command(
        self,
        command: &'a Command,
        piped: Option<Value<'a>>,
    ) -> Result<Value<'a>, RunError> {
        let mut arguments = Vec::with_capacity(command.arguments.len() + 1);
        for argument in &command.arguments {
            arguments.push(self.operand(argument)?);
        }
        arguments.extend(piped);
        match &command.head {
            Operand::Function(function) => self.call(*function, &arguments),
            head if arguments.is_empty() => self.operand(head),
            Operand::Fields(fields) => self.method(Value::Root, fields, &arguments),
            Operand::Group(inner, fields) => self.method(self.pipeline(inner)?, fields, &arguments),
            _ => Err(RunError::Arguments("a value")),
        }
    }

    fn operand(self, operand: &'a Operand) -> Result<Value<'a>, RunError> {
        Ok(match operand {
            Operand::Text(text) => Value::Text(Cow::Borrowed(text)),
            Operand::Integer(value) => Value::Integer(*value),
            Operand::Float(value) => Value::Float(*value),
            Operand::Bool(value) => Value::Bool(*value),
            Operand::Nil => Value::Nil,
            Operand::Fields(fields) => self.fields(Value::Root, fields)?,
            Operand::Group(inner, fields) => self.fields(self.pipeline(inner)?, fields)?,
            Operand::Function(function) => self.call(*function, &[])?,
        })
    }

    fn fields(self, of: Value<'a>, fields: &[String]) -> Result<Value<'a>, RunError> {
        let mut value = of;
        for name in fields {
            value = match self.field(&value, name) {
                Some(field) => field,
                // A map has every key; what is absent has no value.
                None if matches!(value, Value::Headers) => Value::List(Vec::new()),
                None => return Err(RunError::NoField(name.clone())),
            };
        }
        Ok(value)
    }

    /// Fields, the last of which is a method with arguments.
    fn method(
        self,
        of: Value<'a>,
        fields: &[String],
        arguments: &[Value<'a>],
    ) -> Result<Value<'a>, RunError> {
        let Some((method, fields)) = fields.split_last() else {
            return Err(RunError::Arguments("a value"));
        };
        let of = self.fields(of, fields)?;
        match (&of, method.as_str(), arguments) {
            (Value::Headers, "Get", [Value::Text(name)]) => Ok(Value::Text(self.header(name))),
            (Value::Headers, "Values", [Value::Text(name)]) => Ok(self
                .header_values(name)
                .unwrap_or_else(|| Value::List(Vec::new()))),
            (Value::Headers, "Get" | "Values", _) => Err(RunError::Arguments("Header")),
            (Value::Request, "ProtoAtLeast", [Value::Integer(major), Value::Integer(minor)]) => {
                let part = |name| match self.field(&Value::Request, name) {
                    Some(Value::Integer(value)) => value,
                    _ => 0,
                };
                let version = (part("ProtoMajor"), part("ProtoMinor"));
                Ok(Value::Bool(version >= (*major, *minor)))
            }
            _ => Err(RunError::NoField(method.clone())),
        }
    }

    fn call(self, function: Function, arguments: &[Value<'a>]) -> Result<Value<'a>, RunError> {
        let owned = |text: String| Value::Text(Cow::Owned(text));
        Ok(match (function, arguments) {
            (Function::Js, _) => owned(escape_js(&self.print(arguments, false)?)),
            (Function::Html, _) => owned(escape_html(&self.print(arguments, false)?)),
            (Function::UrlQuery, _) => owned(escape_query(&self.print(arguments, false)?)),
            (Function::Print, _) => owned(self.print(arguments, false)?),
            (Function::Println, _) => owned(self.print(arguments, true)? + "\n"),
            (Function::Len, [value]) => Value::Integer(self.length(value)?),
            (Function::Not, [value]) => Value::Bool(!self.is_true(value)),
            (Function::And, [first, rest @ ..]) => {
                self.first(std::iter::once(first).chain(rest), false)
            }
            (Function::Or, [first, rest @ ..]) => {
                self.first(std::iter::once(first).chain(rest), true)
            }
            (Function::Index, [of, keys @ ..]) => self.index(of, keys)?,
            (Function::Eq, [first, others @ ..]) if !others.is_empty() => {
                let mut equal = false;
                for other in others {
                    equal |= compare(first, other)? == Ordering::Equal;
                }
                Value::Bool(equal)
            }
            (Function::Ne, [a, b]) => Value::Bool(compare(a, b)? != Ordering::Equal),
            (Function::Lt, [a, b]) => Value::Bool(compare(a, b)? == Ordering::Less),
            (Function::Le, [a, b]) => Value::Bool(compare(a, b)? != Ordering::Greater),
            (Function::Gt, [a, b]) => Value::Bool(compare(a, b)? == Ordering::Greater),
            (Function::Ge, [a, b]) => Value::Bool(compare(a, b)? != Ordering::Less),
            _ => return Err(RunError::Arguments("a function")),
        })
    }

    /// The first value that is true, or is not; else the last.
    fn first<'v>(self, values: impl Iterator<Item = &'v Value<'a>>, wanted: bool) -> Value<'a>
    where
        'a: 'v,
    {
        let mut last = &Value::Nil;
        for value in values {
            last = value;
            if self.is_true(value) == wanted {
                break;
            }
        }
        last.clone()
    }

    /// Go's `Sprint`: a space between values neither of which is text; or always, as in `Sprintln`.
    fn print(self, values: &[Value<'a>], spaced: bool) -> Result<String, RunError> {
        let mut out = String::new();
        for (at, value) in values.iter().enumerate() {
            let is_text = |value: &Value<'_>| matches!(value, Value::Text(_));
            if at > 0 && (spaced || (!is_text(value) && !is_text(&values[at - 1]))) {
                out.push(' ');
            }
            if !self.write(value, &mut out) {
                return Err(RunError::Structure);
            }
        }
        Ok(out)
    }

    fn length(self, value: &Value<'a>) -> Result<i64, RunError> {
        let length = match value {
            Value::Text(text) => text.len(),
            Value::List(list) => list.len(),
            Value::Headers => self.record.headers.keys_len(),
            _ => return Err(RunError::Arguments("len")),
        };
        Ok(i64::try_from(length).unwrap_or(i64::MAX))
    }

    fn index(self, of: &Value<'a>, keys: &[Value<'a>]) -> Result<Value<'a>, RunError> {
        let mut value = of.clone();
        for key in keys {
            value = match (&value, key) {
                (Value::Headers, Value::Text(name)) => self
                    .header_values(name)
                    .unwrap_or_else(|| Value::List(Vec::new())),
                (Value::List(list), Value::Integer(at)) => usize::try_from(*at)
                    .ok()
                    .and_then(|at| list.get(at))
                    .cloned()
                    .map(Value::Text)
                    .ok_or(RunError::Arguments("index"))?,
                _ => return Err(RunError::Arguments("index")),
            };
        }
        Ok(value)
    }
}

fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, RunError> {
    let ordering = match (a, b) {
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Integer(a), Value::Integer(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Nil, Value::Nil) => Some(Ordering::Equal),
        _ => None,
    };
    ordering.ok_or(RunError::Comparison)
}

/// For the inside of a JavaScript or JSON string, as Go's `js`.
fn escape_js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' | '=' => push_code(&mut out, c),
            c if c.is_control() || is_invisible(c) => push_code(&mut out, c),
            c => out.push(c),
        }
    }
    out
}

/// Line ends, marks of direction and the like, which viewers obey and nobody sees.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn push_code(out: &mut String, c: char) {
    // Writing to memory does not fail.
    let _written = write!(out, "\\u{:04X}", u32::from(c));
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\0' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

fn escape_query(text: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~')
        .remove(b' ');
    percent_encoding::utf8_percent_encode(text, KEPT)
        .to_string()
        .replace(' ', "+")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method, Version};

    use super::*;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("a.example"));
        headers.insert("user-agent", HeaderValue::from_static("x\"<y>"));
        headers.append("x-id", HeaderValue::from_static("1"));
        headers.append("x-id", HeaderValue::from_static("2"));
        headers.insert("content-length", HeaderValue::from_static("3"));
        headers.insert(
            "traceparent",
            HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        );
        Record {
            method: Method::POST,
            uri: "/x?y=1".parse().unwrap(),
            version: Version::HTTP_11,
            headers,
            remote_address: "127.0.0.1:5".to_owned(),
            code: 200,
            size: 5,
            latency_seconds: 0.0065,
        }
    }

    fn run(template: &str) -> Result<String, RunError> {
        let revision = RevisionInfo {
            name: "rev".to_owned(),
            pod_ip: "10.0.0.1".to_owned(),
            ..RevisionInfo::default()
        };
        let written = Template::parse(template)
            .unwrap()
            .run(&record(), &revision)?;
        Ok(written.trim_end_matches('\n').to_owned())
    }

    #[test]
    fn knatives_template_gives_its_line() {
        assert_eq!(
            run(crate::observability::REQUEST_LOG_TEMPLATE).unwrap(),
            r#"{"httpRequest": {"requestMethod": "POST", "requestUrl": "/x?y\u003D1", "requestSize": "3", "status": 200, "responseSize": "5", "userAgent": "x\"\u003Cy\u003E", "remoteIp": "127.0.0.1:5", "serverIp": "10.0.0.1", "referer": "", "latency": "0.0065s", "protocol": "HTTP/1.1"}, "traceId": "0af7651916cd43dd8448eb211c80319c"}"#
        );
    }

    #[test]
    fn the_language_means_what_it_means_in_go() {
        for (template, expected) in [
            (r#"{{.Request.Header.Get "x-id"}}"#, "1"),
            (r#"{{.Request.Header.Get "absent"}}."#, "."),
            (r#"{{index .Request.Header "X-Id"}}"#, "[1 2]"),
            (r#"{{index (.Request.Header.Values "X-Id") 1}}"#, "2"),
            (
                r#"{{js (.Request.Header.Get "User-Agent")}}"#,
                r#"x\"\u003Cy\u003E"#,
            ),
            (
                r#"{{.Request.Header.Get "User-Agent" | html}}"#,
                "x&#34;&lt;y&gt;",
            ),
            (r#"{{"a b/c" | urlquery}}"#, "a+b%2Fc"),
            ("a  {{- 1 -}}  b", "a1b"),
            ("a{{/* no */}}b", "ab"),
            ("{{if .Request.Referer}}yes{{else}}no{{end}}", "no"),
            (
                "{{if eq .Response.Code 404}}a{{else if ge .Response.Code 200}}b{{else}}c{{end}}",
                "b",
            ),
            (
                r#"{{if and (eq .Request.Method "POST") (not .Request.Referer)}}x{{end}}"#,
                "x",
            ),
            (r#"{{or .Request.Referer "none"}}"#, "none"),
            (
                "{{.Request.URL}} {{.Request.URL.Path}} {{.Request.URL.RawQuery}}",
                "/x?y=1 /x y=1",
            ),
            ("{{.Request.ProtoAtLeast 1 1}}", "true"),
            (r#"{{len "abc"}}{{print 1 2 "x"}}"#, "31 2x"),
            ("{{$.Request.Host}}", "a.example"),
            ("{{ `raw\\` }}", "raw\\"),
            ("{{-1}}", "-1"),
        ] {
            assert_eq!(run(template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_cannot_be_run_is_an_error() {
        for template in [
            "{{.Request.Nope}}",
            "{{.Nope}}",
            "{{.Request}}",
            "{{.Request.Header.Get 1}}",
            "{{.Request.Method.X}}",
            "{{eq 1 \"1\"}}",
            "{{len 1}}",
            "{{not}}",
            "{{index (.Request.Header.Values \"X-Id\") 2}}",
        ] {
            assert!(run(template).is_err(), "{template}");
        }
    }
}
