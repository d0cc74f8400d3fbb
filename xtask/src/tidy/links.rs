//! Links in documents: each leads to a file and a heading that exist, and the book has every page
//! of `docs/` once.

use std::collections::HashMap;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Links that lead nowhere, and pages that the book lacks or has twice.
pub(super) fn findings(files: &[(String, String)], root: &Path) -> Vec<String> {
    let is_page = |(name, _): &&(String, String)| name.ends_with(".md");
    let pages: Vec<Page> = files
        .iter()
        .filter(is_page)
        .map(|(name, text)| Page::read(name, text))
        .collect();
    let headings: HashMap<&str, &[String]> = pages.iter().map(|page| (page.name, page.headings.as_slice())).collect();
    let exists = |name: &str| files.iter().any(|(file, _)| file == name) || root.join(name).exists();
    let mut findings = Vec::new();
    for page in &pages {
        for link in &page.links {
            if let Some(fault) = link.fault(page, &headings, exists) {
                findings.push(format!(
                    "{}:{}: broken link {}: {fault}",
                    page.name, link.line, link.target
                ));
            }
        }
    }
    findings.extend(book(&pages));
    findings
}

/// Pages of `docs/` that the table of contents lacks or names more than once.
fn book(pages: &[Page]) -> Vec<String> {
    let Some(summary) = pages.iter().find(|page| page.name == SUMMARY) else {
        return Vec::new();
    };
    let named: Vec<String> = summary.links.iter().filter_map(|link| link.file(summary)).collect();
    let is_in_book = |page: &&Page| page.name.starts_with("docs/") && page.name != SUMMARY;
    let finding = |page: &Page| match named.iter().filter(|file| *file == page.name).count() {
        0 => Some(format!("{}: {SUMMARY} does not list it", page.name)),
        1 => None,
        times => Some(format!("{}: {SUMMARY} lists it {times} times", page.name)),
    };
    pages.iter().filter(is_in_book).filter_map(finding).collect()
}

/// What links need to know of a document.
struct Page<'a> {
    name: &'a str,
    links: Vec<Link>,
    /// Its headings' anchors.
    headings: Vec<String>,
}

struct Link {
    target: String,
    line: usize,
}

impl<'a> Page<'a> {
    fn read(name: &'a str, text: &str) -> Self {
        let mut page = Self {
            name,
            links: Vec::new(),
            headings: Vec::new(),
        };
        let mut heading: Option<String> = None;
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => page.links.push(Link {
                    target: dest_url.into_string(),
                    line: line_of(place.start),
                }),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = page.free_anchor(&anchor(&heading.take().unwrap_or_default()));
                    page.headings.push(anchor);
                }
                _ => {}
            }
        }
        page
    }

    /// The anchor of one more heading: equal ones are numbered.
    fn free_anchor(&self, anchor: &str) -> String {
        let mut numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let is_free = |anchor: &String| !self.headings.contains(anchor);
        Some(anchor.to_owned())
            .filter(is_free)
            .or_else(|| numbered.find(is_free))
            .unwrap_or_default()
    }
}

impl Link {
    /// Why it leads nowhere.
    fn fault(
        &self,
        page: &Page,
        headings: &HashMap<&str, &[String]>,
        exists: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        if self.is_external() {
            return None;
        }
        if self.target.starts_with('/') {
            return Some("an absolute path");
        }
        let Some(file) = self.file(page) else {
            return Some("it leads out of the repository");
        };
        let is_in_book = |name: &str| name.starts_with("docs/") && name != SUMMARY;
        if is_in_book(page.name) && !is_in_book(&file) {
            return Some("the book does not have it");
        }
        if !exists(&file) {
            return Some("there is no such file");
        }
        let (_, anchor) = self.target.split_once('#')?;
        let known = headings.get(file.as_str())?;
        (!known.iter().any(|heading| heading == anchor)).then_some("there is no such heading")
    }

    fn is_external(&self) -> bool {
        self.target.contains("://") || self.target.starts_with("mailto:")
    }

    /// The file that it leads to, from the root on.
    fn file(&self, page: &Page) -> Option<String> {
        let path = self.target.split(['#', '?']).next().unwrap_or_default();
        if path.is_empty() {
            return Some(page.name.to_owned());
        }
        let mut parts: Vec<&str> = page.name.split('/').collect();
        parts.pop();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match part {
                "." => {}
                ".." => _ = parts.pop()?,
                part => parts.push(part),
            }
        }
        Some(parts.join("/"))
    }
}

/// A heading's anchor, as forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in these documents, in a repository without other files.
    fn found(documents: &[(&str, &str)]) -> Vec<String> {
        let file = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        let files: Vec<_> = documents.iter().map(file).collect();
        findings(&files, Path::new("/nonexistent"))
    }

    #[test]
    fn broken_links_are_found() {
        let page = ("docs/b.md", "# A `Heading`, or two\n\n## Again\n\n## Again\n");
        for (link, fault) in [
            ("b.md", None),
            ("./b.md#a-heading-or-two", None),
            ("../docs/b.md#again-1", None),
            ("../docs", Some("the book does not have it")),
            ("../a.md", Some("the book does not have it")),
            ("SUMMARY.md", Some("the book does not have it")),
            ("b.md#again-2", Some("no such heading")),
            ("c.md", Some("no such file")),
            ("../../b.md", Some("out of the repository")),
            ("/docs/b.md", Some("absolute")),
            ("#nothing", Some("no such heading")),
            ("https://example.org/c.md", None),
        ] {
            let found = found(&[("docs/a.md", &format!("# A\n\nsee [b]({link}) there\n")), page]);
            match fault {
                None => assert_eq!(found, Vec::<String>::new(), "{link}"),
                Some(fault) => {
                    assert!(found.len() == 1 && found[0].contains(fault), "{link}: {found:?}");
                    assert!(found[0].starts_with("docs/a.md:3: "), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn pictures_and_references_are_links_and_code_is_not() {
        assert_eq!(found(&[("a.md", "![x](x.png)\n\n[y][1]\n\n[1]: y.md\n")]).len(), 2);
        assert!(found(&[("a.md", "`[x](x.md)`\n\n```\n[x](x.md)\n```\n")]).is_empty());
    }

    #[test]
    fn every_page_is_in_the_book_once() {
        let summary = (SUMMARY, "# Summary\n\n- [A](a.md)\n- [B](x/b.md)\n- [Again](x/b.md)\n");
        let found = found(&[summary, ("docs/a.md", ""), ("docs/x/b.md", ""), ("docs/c.md", "")]);
        let about = |text: &str| found.iter().any(|finding| finding.contains(text));
        assert!(about("docs/x/b.md: docs/SUMMARY.md lists it 2 times"), "{found:?}");
        assert!(about("docs/c.md: docs/SUMMARY.md does not list it"), "{found:?}");
        assert_eq!(found.len(), 2);
    }
}
