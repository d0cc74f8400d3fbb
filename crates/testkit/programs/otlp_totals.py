"""Prints the functions of an OTLP profile with their samples, as JSON: {name: [self, total]}.

Reads with the protocol's own generated code, and fails if the file breaks a rule of the protocol:
the first entry of each table is empty, indices are within the tables, strings are distinct.

usage: otlp_totals.py FILE
"""
import collections
import json
import sys

from opentelemetry.proto.profiles.v1development import profiles_pb2

data = profiles_pb2.ProfilesData()
data.ParseFromString(open(sys.argv[1], "rb").read())
tables = data.dictionary
assert tables.string_table[0] == "", "the first string is not empty"
assert len(set(tables.string_table)) == len(tables.string_table), "a string occurs twice"
for table, empty in [
    (tables.mapping_table, profiles_pb2.Mapping()),
    (tables.location_table, profiles_pb2.Location()),
    (tables.function_table, profiles_pb2.Function()),
    (tables.link_table, profiles_pb2.Link()),
    (tables.attribute_table, profiles_pb2.KeyValueAndUnit()),
    (tables.stack_table, profiles_pb2.Stack()),
]:
    assert table[0] == empty, f"the first entry is {table[0]}"

own, total = collections.Counter(), collections.Counter()
attributes = collections.Counter()
build_ids = set()
for mapping in tables.mapping_table:
    for index in mapping.attribute_indices:
        attribute = tables.attribute_table[index]
        if tables.string_table[attribute.key_strindex].endswith("build_id.gnu"):
            build_ids.add(attribute.value.string_value)
for resource in data.resource_profiles:
    for scope in resource.scope_profiles:
        for profile in scope.profiles:
            kind = tables.string_table[profile.sample_type.type_strindex]
            assert kind == "samples", kind
            for sample in profile.samples:
                assert len(sample.values) == len(sample.timestamps_unix_nano)
                count = sum(sample.values)
                for index in sample.attribute_indices:
                    assert index > 0
                    attributes[tables.string_table[tables.attribute_table[index].key_strindex]] += count
                names = []
                for location in tables.stack_table[sample.stack_index].location_indices:
                    tables.mapping_table[tables.location_table[location].mapping_index]
                    for line in tables.location_table[location].lines:
                        function = tables.function_table[line.function_index]
                        names.append(tables.string_table[function.name_strindex])
                own[names[0]] += count
                for name in set(names):
                    total[name] += count

functions = {name: [own[name], total[name]] for name in total}
json.dump({"functions": functions, "attributes": attributes, "build_ids": sorted(build_ids)}, sys.stdout)
