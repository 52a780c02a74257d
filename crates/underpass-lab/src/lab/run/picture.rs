//! The network as an SVG: hosts below, routers above them, and at each end of a link the packets that it has received.

use std::{collections::VecDeque, fmt::Write};

use super::file::Topology;

/// Between the centres of nodes, in pixels.
const ACROSS: usize = 150;
const DOWN: usize = 150;
/// A node's box.
const BOX: (usize, usize) = (110, 36);

/// Where the nodes are.
#[derive(Debug, Clone)]
pub struct Places {
    pub width: usize,
    pub height: usize,
    /// The middle of each node's box.
    pub at: Vec<(usize, usize)>,
}

/// Finds a place for each node.
pub fn places(topology: &Topology) -> Places {
    let rows = rows(topology);
    let widest = rows.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let (width, height) = (widest * ACROSS, rows.len().max(1) * DOWN);
    let mut at = vec![(0, 0); topology.nodes.len()];
    for (row, nodes) in rows.iter().rev().enumerate() {
        for (place, &node) in nodes.iter().enumerate() {
            // Each row is spread over the whole width.
            at[node] = ((2 * place + 1) * width / (2 * nodes.len()), row * DOWN + DOWN / 2);
        }
    }
    Places { width, height, at }
}

/// Draws it; `received` has the packets of both ends of each link.
pub fn draw(topology: &Topology, received: &[[u64; 2]]) -> String {
    let Places { width, height, at } = places(topology);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (link, received) in topology.links.iter().zip(received) {
        let [one, other] = link.ends.each_ref().map(|end| at[end.node]);
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#888\" stroke-width=\"2\"/>",
            one.0, one.1, other.0, other.1
        );
        for (end, count, near, far) in
            [(&link.ends[0], received[0], one, other), (&link.ends[1], received[1], other, one)]
        {
            // At a third of the way, where the box is behind.
            let (x, y) = ((2 * near.0 + far.0) / 3, (2 * near.1 + far.1) / 3);
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" stroke=\"#fff\" stroke-width=\"3\" \
                 paint-order=\"stroke\">{}: {count}</text>",
                escaped(&end.device)
            );
        }
    }
    for (node, (x, y)) in topology.nodes.iter().zip(&at) {
        let kind = node.kind();
        let fill = if node.router.is_none() { "#e8f0fe" } else { "#e6f4ea" };
        let (left, top) = (x - BOX.0 / 2, y - BOX.1 / 2);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{fill}\" stroke=\"#555\"/>\n\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-size=\"13\" font-weight=\"bold\">{}</text>\n\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{kind}</text>",
            BOX.0,
            BOX.1,
            y - 1,
            escaped(&node.name),
            y + 13,
        );
    }
    svg + "</svg>\n"
}

/// The nodes by their distance from the nearest host, each row in the order of what it is joined to below.
fn rows(topology: &Topology) -> Vec<Vec<usize>> {
    let count = topology.nodes.len();
    let mut beside = vec![Vec::new(); count];
    for link in &topology.links {
        let [one, other] = link.ends.each_ref().map(|end| end.node);
        beside[one].push(other);
        beside[other].push(one);
    }
    let hosts = || (0..count).filter(|&node| topology.nodes[node].router.is_none());
    let mut distance = vec![None; count];
    hosts().for_each(|host| distance[host] = Some(0));
    let mut next: VecDeque<usize> = hosts().collect();
    while let Some(node) = next.pop_front() {
        for &other in &beside[node] {
            if distance[other].is_none() {
                distance[other] = distance[node].map(|steps: usize| steps + 1);
                next.push_back(other);
            }
        }
    }
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (node, steps) in distance.iter().enumerate() {
        // What no host is joined to is a row of its own, at the top of none.
        let row = steps.unwrap_or(0);
        rows.resize(rows.len().max(row + 1), Vec::new());
        rows[row].push(node);
    }
    // Hosts stand as the routers above them do, in the order of the file; the rest follows its neighbours.
    let routers_first = rows.get(1).cloned().unwrap_or_default();
    let place = |order: &[usize], node: usize| {
        let places: Vec<usize> = order
            .iter()
            .enumerate()
            .filter(|(_, above)| beside[node].contains(above))
            .map(|(at, _)| at)
            .collect();
        // In sixty-fourths, so that a node between two stands between.
        if places.is_empty() { usize::MAX } else { places.iter().sum::<usize>() * 64 / places.len() }
    };
    if let Some(first) = rows.first_mut() {
        first.sort_by_key(|&node| place(&routers_first, node));
    }
    for row in 2..rows.len() {
        let below = rows[row - 1].clone();
        rows[row].sort_by_key(|&node| place(&below, node));
    }
    rows
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn hosts_are_below_their_routers() {
        let text = "topology:
  nodes: {a: {kind: host}, b: {kind: host}, s: {kind: router}, l1: {kind: router}, l2: {kind: router}}
  links:
    - endpoints: [\"l1:e<\", \"s:e1\"]
    - endpoints: [\"l2:e0\", \"s:e2\"]
    - endpoints: [\"a:e0\", \"l2:e1\"]
    - endpoints: [\"b:e0\", \"l1:e1\"]
";
        let topology = Topology::parse(text, "x.yaml", Path::new(".")).unwrap();
        assert_eq!(rows(&topology), [vec![1, 0], vec![3, 4], vec![2]]);
        let svg = draw(&topology, &[[1, 2], [3, 4], [5, 6], [7, 8]]);
        assert_eq!(svg.matches("<line").count(), 4);
        for text in [">e&lt;: 1<", ">e1: 8<", ">l2<", ">host<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
